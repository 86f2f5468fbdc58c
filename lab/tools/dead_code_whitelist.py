"""Names that vulture takes for dead code, because nothing in src uses them: who does.

`make dead-code` fails for every other name that src alone does not use. A name that only tests use is dead code, too:
delete it, or move it to the tests. `_` stands for any object; only the names count.
"""

# Read by Python: the lazy names of a package.
__getattr__
__dir__

# Read by Python: the class of an object, set on one that was made as another.
_.__class__

# Called by asyncio's transports and by aiohttp.
_.connection_made
_.data_received
_.pause_writing
_.resume_writing
_.eof_received
_.sizehint
_.handle_error
_.log_exception
_.log_debug

# Called by click.
_.get_command
_.format_commands

# Called or read by http.server; `client_address` is a parameter of its method.
_.close_connection
_.do_GET
_.log_message
_.daemon_threads
_.protocol_version
client_address

# Called by pyarrow, which takes the object for a file.
_.writable
_.seekable

# Read by users of the checkpoint of a query; the option sets others.
positions_of
_.fail_on_data_loss

# Called by pytest.
_.pytest_addoption
_.pytest_configure
_.pytest_collectreport
_.pytest_collection_modifyitems
_.pytest_runtest_protocol
_.pytest_sessionfinish

# Called by Spark.
_.DefaultSource
_.streamWriter
_.pushFilters
_.streamReader
_.initialOffset
_.latestOffset
_.getDefaultReadLimit
_.reportLatestOffset
_.prepareForTriggerAvailableNow
_.exc_info

# Called by users: the embedded node.
_.add_user
_.remove_user
_.change_bucket
_.set_collections
_.client_certificate
_.add_node
_.wait_until_drained
_.pause_replication
_.resume_replication
_.has_news
_.crash
_.restart_node

# Called by users: the client and the pipelines.
_.record_batch
_.vbucket_of
_.IGNORE
_.REWIND_AND_MARK
_.PASSIVE
_.rows_per_second
_.vbuckets_inside_snapshot
_.total_lag

# Called by users: the test kit. The container has the names of testcontainers.
_.image
_.with_bucket
_.with_credentials
_.with_enabled_services
_.with_quota
_.with_flush_enabled
_.with_replicas
_.get_name
_.get_host
_.get_username
_.get_password
_.get_connection_string
_.get_exposed_port
_.get_bootstrap_carrier_direct_port
_.get_bootstrap_http_direct_port

_.any_frames
_.messages_of
_.restart
_.advance
_.delete_doc
_.buffer_ack
_.marker_v2
_.add_stream
_.interrupt

# Printed field by field: `dcpstream store check --json`.
_.void_blocks

# Asked by tests about the state of machines, stores and users, or used by them to clean up.
_.close_all
_.is_legal
_.set_privileges

# The protocol's own names: codes that we know but do not use, and fields that we carry but do not read.
_.CONFIG_ONLY
_.DATATYPE
_.DISCONNECTED
_.FROM_LATEST
_.IMPERSONATE_TOKEN
_.INVALID_NOTIFIER
_.NODE
_.NON_BLOCKING_THROTTLING
_.NOT_INITIALIZED
_.RAPPEND
_.RAPPENDQ
_.RDECR
_.RDELETE
_.RDELETEQ
_.REPORT_UNITS
_.RINCR
_.RINCRQ
_.RPREPEND
_.RPREPENDQ
_.RSET
_.RSETQ
_.TAP_CHECKPOINT_START
_.TAP_DELETE
_.TAP_FLUSH
_.TAP_MUTATION
_.TAP_OPAQUE
_.TAP_VBUCKET_SET
_.TLS
_.TOO_SLOW
_.UNUSED
_.abort_seqno
_.commit_seqno
_.lock_time
_.nmeta
_.observed_vbid
_.reserved
_.stream_opaque
_.unused

# Read by name through the message table.
_.purge_before_time
_.purge_before_seqno
_.db_file_id
_.event_id
_.timed_opcode
_.injected_error
_.datatype_stored
_.cas_of_version
_.extension_bytes
_.item_limit
_.time_limit_ms
_.byte_limit
_.path_length
_.value_length
_.status_of_change
_.limit_status

# Read by name: the manager of a cluster edits collections by the name of the change.
_.add_scope
_.drop_scope
_.add_collection
_.change_collection
_.drop_collection

# For users of `dcpstream_node.testing.simulation`.
_.hang
_.interrupt
_.lose_power
_.delete_vbuckets
_.host_buckets
_.users

# Called by users: logs as JSON, and the faults of `couchbase_faults`.
JsonFormatter
_.__call__
_.tmpfail
_.small_buffer
_.clock_forward

# Called by users: the rows of a batch; and by `dcpstream doctor`, through an entry point.
_.record_batch
spark_findings

# Used by `interop`.
_.has_tls

# Used by `bench`, to fill a store.
_.append_many

# Read by lab/tools/release_reference.py, which writes the page about bugs of servers.
versions
_.versions

# Names of the protocol, and fields of odd frames, that `packet` takes by name.
STREAM_NOT_FOUND
EBUSY
fr
keylen
extlen
bodylen

# Called by pytest.
_.runtest
_.reportinfo

# In the JSON of `dcpstream judge`, and read by `make judge`.
_.expected_literal

# Read by pytest: it ends the run.
_.shouldstop
