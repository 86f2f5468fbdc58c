"""One client connection without its socket: frames in, answers out."""
