//! Sans-IO codecs.
