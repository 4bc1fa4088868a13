"""Trains a recommendation model under a given plan with TorchRec. Plans nothing and knows no cluster."""
