"""Cost models at plan time: features, networks in NumPy, bundles, and the device simulator."""
