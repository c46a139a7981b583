//! Voting files: blocks of 4 KiB on shared disks or on disks of single nodes, in which nodes leave what others must find.

pub mod format;
