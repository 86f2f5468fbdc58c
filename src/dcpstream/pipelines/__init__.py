"""Jobs on top of the Spark source: a bucket's changes as tables.

`Pipeline` keeps two Delta tables: `changes`, each delivered row once, and `current`, the bucket as it is.
"""

from dcpstream.pipelines.pipeline import Pipeline
from dcpstream.pipelines.progress import BatchReport, PipelineProgress, RollbackReport

__all__ = ["BatchReport", "Pipeline", "PipelineProgress", "RollbackReport"]
