"""Drift: notices that training has become lastingly slower or its inputs different. Values and pure functions."""
