"""What attention kinds compute: a file each, with the name of the kind's row.

Every kind maps queries, keys and values of some heads to their outputs, row by
row: output row i depends on query row i alone, so rows of different kinds mix
freely. Leading axes (batch, head) are whatever the caller has.

Scores are `s = q k' / sqrt(head_dim)`. Cards name the properties of softmax
that a kind keeps: a weight grows with its own score (monotonicity), is not
negative, and a row of weights sums to one.
"""
