"""How a call of the Pallas kernel is cut into blocks."""

# Lanes of a vector register; row maxima are kept in all lanes, row sums as one partial sum a lane.
LANES = 128
# VMEM of the smallest TPU (v4) is 16 MiB; a block of rows is sized for it.
VMEM_BYTES = 16 << 20


class Blocks:
    """Block sizes for one call; all static.

    heads: query heads per grid step, a divisor of the group.
    queries, part: queries per head and grid step, and the piece in which the diagonal is cut.
    keys, chunk: keys per softmax step, and per piece of K and V that is brought into VMEM.
    """

    def __init__(self, queries, keys, group, head_dim, itemsize, sizes=None):
        sizes = {"rows": 2048, "keys": 512, "chunk_bytes": 1 << 20, **(sizes or {})}
        most_rows = sizes["rows"] * LANES // max(LANES, head_dim) * 2 // itemsize
        self.heads = max(n for n in range(1, group + 1) if group % n == 0 and n * LANES <= 1152)
        largest = LANES
        while largest < 512 and 2 * largest * self.heads <= most_rows:
            largest *= 2
        self.queries = queries if queries < LANES else min(largest, power(queries))
        self.part = min(self.queries, LANES)
        self.parts = self.queries // self.part
        self.together = min(self.parts, sizes.get('together', 4))
        self.keys = min(sizes["keys"], power(keys))
        largest_chunk = max(1, sizes["chunk_bytes"] // (self.keys * head_dim * itemsize)) * self.keys
        self.chunk = min(largest_chunk, max(self.keys, keys // self.keys * self.keys))
        self.vmem_bytes = sizes.get("vmem_bytes", VMEM_BYTES)


def power(size):
    """The smallest power of two from 128 on that holds `size`."""
    return max(LANES, 1 << (size - 1).bit_length())


def round_up(size, multiple):
    """The smallest multiple that holds `size`."""
    return -(-size // multiple) * multiple
