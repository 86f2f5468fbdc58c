"""Work of a node beside its clients: making writes durable, compacting, expiring, reading ahead from the disk."""
