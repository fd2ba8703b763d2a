"""The compiled module `pointnet2._ext` of VoteNet and other copies of PointNet++'s operators."""

__all__: list[str] = []
