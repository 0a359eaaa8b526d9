"""The native module; see module.cpp."""
