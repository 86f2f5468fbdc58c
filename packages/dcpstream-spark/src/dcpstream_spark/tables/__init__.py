"""Jobs on top of the Spark source: a bucket's changes as tables.

`Pipeline` runs a streaming query. Each micro-batch is appended to the table `changes`, and from time to time the new
rows of `changes` are folded into the table `current`, the documents of the bucket. `engine` says what a pipeline asks
of the engine that writes the tables, and which rows count; `engines` chooses one. `delta_rs` is the one that needs no
Spark: `rows` has its columns, and rows of them as Arrow tables. `fold_sql` has the fold of all engines. The fields of
documents become columns by `document_types`, and in SQL by `document_sql`; `evolution` brings a table to another
schema. `location` distinguishes local directories from URLs, `small_files` reads and writes single files there, and a
`lease` of such files keeps a second process away from the tables; `progress` has the reports. `monitor` serves them
over HTTP and watches for stalls; `monitor_page` makes its page.

`many` keeps a table for each collection, as one engine: `table_names` says which, and the `ledger` up to where they are
folded.

`compare` (`comparison`) compares any table, opened by `table_reading`, with its bucket. `lake` keeps several pipelines
of one session running, as a file describes them (`lake_config`).
"""

from dcpstream_spark.tables.comparison import ComparisonReport, Difference, TableColumns, TableForm, compare
from dcpstream_spark.tables.engine import BatchSummary, FoldReport, TableEngine, TableState
from dcpstream_spark.tables.monitor import Monitor
from dcpstream_spark.tables.pipeline import Pipeline
from dcpstream_spark.tables.progress import BatchReport, PipelineProgress, RollbackReport

__all__ = [
    "BatchReport",
    "BatchSummary",
    "ComparisonReport",
    "Difference",
    "FoldReport",
    "Monitor",
    "Pipeline",
    "PipelineProgress",
    "RollbackReport",
    "TableColumns",
    "TableEngine",
    "TableForm",
    "TableState",
    "compare",
]
