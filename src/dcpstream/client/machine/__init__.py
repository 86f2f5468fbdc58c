"""The client without sockets and clocks: connections, sessions, readers, and the resume rule."""
