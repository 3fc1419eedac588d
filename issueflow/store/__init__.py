"""Issue directories on disk: journals, locks, documents, run folders, the index; their meaning is decided elsewhere."""
