"""Access to the rows of neighbors, shared by the Triton kernels of this family."""

import triton
import triton.language as tl


@triton.jit
def place(centers, groups, BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr):
    """The cloud of this program, its centers numbered through the batch, its groups, and the masks of both."""
    group_tiles = tl.cdiv(groups, BLOCK_G)
    tile = tl.program_id(0) // group_tiles
    group = tl.program_id(0) % group_tiles * BLOCK_G + tl.arange(0, BLOCK_G)
    tiles = tl.cdiv(centers, BLOCK_M)
    cloud = (tile // tiles).to(tl.int64)
    center = (tile % tiles).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    return cloud, cloud * centers + center, center < centers, group, group < groups


@triton.jit
def neighbor(index_ptr, cloud, center, center_mask, k, neighbors, rows):
    """(BLOCK_M,) positions in the index of the k-th neighbors, their rows in the batch, and the masks of both."""
    pick = center * neighbors + k
    pick_mask = center_mask & (pick < (center + 1) * neighbors)
    row = tl.load(index_ptr + pick, mask=pick_mask, other=-1)
    return pick, pick_mask, cloud * rows + row, (row >= 0) & (row < rows)


@triton.jit
def channels_of(group, group_mask, start, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr):
    """(1, BLOCK_G, BLOCK_W) offsets in a row of the channels of the groups, beginning at `start`, and their mask."""
    channel = start + tl.arange(0, BLOCK_W)
    mask = group_mask[:, None] & (channel < WIDTH)[None, :]
    return (group[:, None] * WIDTH + channel[None, :])[None, :, :], mask[None, :, :]


@triton.jit
def load_rows(ptr, row, row_mask, groups, WIDTH: tl.constexpr, channel, channel_mask, WIDE: tl.constexpr):
    """(BLOCK_M, BLOCK_G, BLOCK_W) values of rows, zero where masked."""
    from_ptr = ptr + (row * groups)[:, None, None] * WIDTH + channel
    return tl.load(from_ptr, mask=row_mask[:, None, None] & channel_mask, other=0).to(WIDE)
