"""Elementary operators with the signatures and results of `torch.nn.functional`, their backward derived by hand.

Each is derived and checked on a page of docs/book.
"""
