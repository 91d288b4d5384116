"""The back end `auto`: torch until an exported model is ready, then that, without a restart."""
