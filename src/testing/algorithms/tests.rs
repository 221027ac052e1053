//! The meters against naive references.
