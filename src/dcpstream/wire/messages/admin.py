"""Messages of operators and of the cluster manager, which client libraries do not send.

Source of all: kv_engine include/mcbp/protocol/opcode.h, daemon/mcbp_validators.cc.
"""
