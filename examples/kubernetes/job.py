"""A pipeline that follows a bucket, with its metrics at port 9464, until SIGTERM."""

import logging
import os

from dcpstream.runtime.logs import JsonFormatter
from dcpstream.runtime.stopping import stop_signals
from dcpstream_spark import Pipeline, build_session
from dcpstream_spark.tables import Monitor

lines = logging.StreamHandler()
lines.setFormatter(JsonFormatter(redact=True))
logging.basicConfig(level=logging.INFO, handlers=[lines])

access = {
    "connectionString": os.environ["COUCHBASE"],
    "username": os.environ["COUCHBASE_USERNAME"],
    "password": os.environ["COUCHBASE_PASSWORD"],
    "bucket": os.environ["COUCHBASE_BUCKET"],
}
host = os.environ.get("MONITOR_HOST", "127.0.0.1")
port = int(os.environ.get("MONITOR_PORT", "9464"))
with stop_signals() as stopping:
    spark = build_session("pipeline", driver_memory=os.environ.get("DRIVER_MEMORY", "2g"))
    with Pipeline(spark, os.environ["TABLES"], access) as pipeline, Monitor([pipeline], host=host, port=port):
        pipeline.start(trigger=os.environ.get("TRIGGER", "10 seconds"))
        while not stopping.is_set() and not pipeline.await_end(1):
            pass
        pipeline.stop()  # ends the batch that is being written, and folds
    spark.stop()
