"""The node's DCP side: the protocol machines of its sessions, their statistics, and its replicas."""
