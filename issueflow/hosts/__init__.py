"""Where runs happen: a host starts a runner for a run folder and tells later, from any process, what became of it.

Nothing here is imported by `issueflow.hosts` itself: the runner loads this package with the standard library alone.
"""
