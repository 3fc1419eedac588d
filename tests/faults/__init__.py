"""Faults at any call that changes a file: an injector, the walks it disturbs, and what must hold afterwards."""
