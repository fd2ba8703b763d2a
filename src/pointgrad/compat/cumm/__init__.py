"""The part of cumm that programs for spconv use: arrays for `Point2VoxelCPU3d`, and names of activations."""
