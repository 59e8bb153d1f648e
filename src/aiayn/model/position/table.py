"""Tables of positions: how large they may be."""

LARGEST = 2**26  # numbers of a table


def check_table(length: int, d_model: int) -> None:
    """Refuse a table of positions that there is no text for.

    Raises:
        ValueError: if it would be empty, or of more than 2^26 numbers, 256 MiB: 65,536 positions of d_model 1024.
    """
    most = LARGEST // max(d_model, 1)
    if not 1 <= length <= most:
        raise ValueError(
            f"model.position.max_length must be from 1 to {most:,} with d_model={d_model}, got {length}. "
            "Give the longest length."
        )
