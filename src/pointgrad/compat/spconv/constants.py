"""Settings that programs change. Only `SAVED_WEIGHT_LAYOUT` has an effect."""

import os

SAVED_WEIGHT_LAYOUT = os.getenv("SPCONV_SAVED_WEIGHT_LAYOUT", "")
"""Layout of the weights in checkpoints: "KRSC" or "" for (Cout, kz, ky, kx, Cin), "RSKC" for (kz, ky, kx, Cout, Cin) of
spconv 2.0 and 2.1, "RSCK" for (kz, ky, kx, Cin, Cout) of spconv 1.x."""

ALL_WEIGHT_IS_KRSC = True
FILTER_HWIO = False
SPCONV_ALLOW_TF32 = False
SPCONV_DO_SORT = True
SPCONV_USE_DIRECT_TABLE = True
