"""Cost models: features, networks, bundles, fitting, and the device simulator. Only `pretrain` imports torch."""
