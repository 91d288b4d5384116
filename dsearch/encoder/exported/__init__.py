"""Encoders as files that OpenVINO or onnxruntime runs: export by torch, cache, and the encoder over both."""
