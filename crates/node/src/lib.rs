//! A node as a library: configuration, links, cache, disk group and control socket, wired.
