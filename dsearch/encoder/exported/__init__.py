"""Encoders as files that OpenVINO runs: export by torch, cache, and the encoder over both."""
