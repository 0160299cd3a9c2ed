"""A live service: events come in over HTTP, answers go out. Needs the extra packages ``cordgt[serve]``."""
