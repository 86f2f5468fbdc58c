"""History in stored form: blocks of frames, and how they go out on a stream."""
