"""Jobs on top of the Spark source: a bucket's changes as tables.

`Pipeline` runs a streaming query and applies each micro-batch to two Delta tables: `changes`, with each delivered row
once, and `current`, with the documents of the bucket. `rows` computes what a batch means for the tables, `tables`
writes them, and `progress` has the reports.
"""

from dcpstream.pipelines.pipeline import Pipeline
from dcpstream.pipelines.progress import BatchReport, PipelineProgress, RollbackReport

__all__ = ["BatchReport", "Pipeline", "PipelineProgress", "RollbackReport"]
