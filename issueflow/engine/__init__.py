"""How things are done: lock, look, decide, do, record; every act is an ensure, so that doing it twice does no harm."""
