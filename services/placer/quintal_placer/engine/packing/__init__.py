"""Tight packing: which node a request takes, so that what is left can still be used.

    shapes   what is asked for, and how often: the request history, with integer decay
    columns  what nodes have free, as arrays
    score    what a placement is worth: the one place where that is written down
    choice   the best node for a shape: scores kept per shape, renewed where a node changed

Whole cards without needs of the host do not come here: the bucket index of `fleet` serves them.
Everything is a whole number (held in float64, which is exact to 2**53), and nodes of equal state
get equal scores to the bit; so a replay decides as the live placer did.
"""
