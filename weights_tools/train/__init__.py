"""The embedded model `tiny`: its world in text, its tokenizer, its training and its measurement.

`tool.train_tiny(Options) -> Trained` does everything; `documents`, `checker` and `items` stand on their own.
"""
