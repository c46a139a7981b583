//! `cargo xtask package`: the Debian package and the tar file of a release build, and their test.
//!
//! Both have the program, the C library with its header and pkg-config file, the manual pages and
//! the completions of shells. The program itself writes the last two, from the definitions of its
//! command line.

mod check;

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::command;

/// The options of `cargo xtask package`.
#[derive(clap::Args)]
pub struct Options {
    /// The directory for the files.
    #[arg(long, default_value = "target/package")]
    out: PathBuf,
    /// Install the package in a copy of this system and use it there (as root).
    #[arg(long)]
    check: bool,
}

/// The places of the files below the prefix.
struct Places {
    lib: String,
    zsh: &'static str,
}

/// Builds the files, and tests the package if that is wanted.
///
/// # Errors
/// A step fails; the error names it.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let program = command::built_program(root, "plexus", "plexus")?;
    let built = program.parent().context("the program has no directory")?;
    let version = env!("CARGO_PKG_VERSION");
    let soname = soname(version);
    let library = ["rustc", "--release", "--package", "plexus-capi", "--"];
    command::run(command::cargo(root).args(library).arg(format!("-Clink-arg=-Wl,-soname,{soname}")))?;
    // Programs that are linked to the library where it was built look for this name.
    link("libplexus.so", &built.join(&soname))?;
    let out = root.join(&options.out);
    fs::create_dir_all(&out)?;
    let staged = tempfile::tempdir()?;

    let name = format!("plexus-{version}-{}", std::env::consts::ARCH);
    let tree = staged.path().join(&name);
    let places = Places { lib: "lib".into(), zsh: "zsh/site-functions" };
    stage(root, [built, &tree], version, "${pcfiledir}/../..", &places)?;
    make_readable(&tree)?;
    let archive = out.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--mtime=@{}", commit_time(root)?)).arg("--file").arg(&archive);
    command::run(tar.arg("--directory").arg(staged.path()).arg(&name))?;
    println!("{}", archive.display());

    if !command::found("dpkg-deb") {
        ensure!(!options.check, "--check needs dpkg-deb, which was not found");
        println!("no .deb: `dpkg-deb` was not found");
        return Ok(());
    }
    let architecture = command::output(Command::new("dpkg").arg("--print-architecture"))?.trim().to_owned();
    let tree = staged.path().join("deb");
    let multiarch = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    let places = Places { lib: multiarch, zsh: "zsh/vendor-completions" };
    stage(root, [built, &tree.join("usr")], version, "/usr", &places)?;
    let control = control(version, &architecture, &fs::read(&program)?);
    write(&tree.join("DEBIAN/control"), control.as_bytes(), 0o644)?;
    write(&tree.join("DEBIAN/triggers"), b"activate-noawait ldconfig\n", 0o644)?;
    let series = soname.trim_start_matches("libplexus.so.");
    let shlibs = format!("libplexus {series} plexus (>= {version})\n");
    write(&tree.join("DEBIAN/shlibs"), shlibs.as_bytes(), 0o644)?;
    let sums = "find usr -type f | LC_ALL=C sort | xargs md5sum > DEBIAN/md5sums";
    command::run(Command::new("sh").args(["-c", sums]).current_dir(&tree))?;
    make_readable(&tree)?;
    let package = out.join(format!("plexus_{version}_{architecture}.deb"));
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "--build"]).arg(&tree).arg(&package);
    command::run(build.env("SOURCE_DATE_EPOCH", commit_time(root)?))?;
    println!("{}", package.display());
    if options.check { check::run(&package, &archive) } else { Ok(()) }
}

/// Copies all files to their places below `tree`, which will be installed as `prefix`.
fn stage(root: &Path, [built, tree]: [&Path; 2], version: &str, prefix: &str, places: &Places) -> Result<()> {
    let copy = |from: &Path, to: &str, mode| {
        write(&tree.join(to), &fs::read(from).with_context(|| from.display().to_string())?, mode)
    };
    let lib = &places.lib;
    copy(&built.join("plexus"), "bin/plexus", 0o755)?;
    let library = format!("libplexus.so.{version}");
    copy(&built.join("libplexus.so"), &format!("{lib}/{library}"), 0o644)?;
    let soname = soname(version);
    link(&library, &tree.join(lib).join(&soname))?;
    link(&soname, &tree.join(lib).join("libplexus.so"))?;
    copy(&built.join("libplexus.a"), &format!("{lib}/libplexus.a"), 0o644)?;
    if command::found("strip") {
        // Without the lines of source code, which only developers need.
        let files = ["bin/plexus".to_owned(), format!("{lib}/{library}"), format!("{lib}/libplexus.a")];
        command::run(Command::new("strip").arg("--strip-debug").args(files).current_dir(tree))?;
    }
    copy(&root.join("crates/capi/include/plexus.h"), "include/plexus.h", 0o644)?;
    let pc = pkg_config(prefix, lib);
    write(&tree.join(lib).join("pkgconfig/plexus.pc"), pc.as_bytes(), 0o644)?;
    for name in ["README.md", "CHANGELOG.md", "docs/guide.md"] {
        copy(&root.join(name), &format!("share/doc/plexus/{name}").replace("docs/", ""), 0o644)?;
    }
    // The name that Debian gives to the licence of a package.
    copy(&root.join("LICENSE"), "share/doc/plexus/copyright", 0o644)?;

    let generated = tempfile::tempdir()?;
    let generate = |kind| {
        let mut generate = Command::new(tree.join("bin/plexus"));
        command::run(generate.arg("generate").arg(kind).arg(generated.path()))
    };
    generate("man")?;
    for page in fs::read_dir(generated.path())? {
        let page = page?;
        let packed = Command::new("gzip").args(["-9nc"]).arg(page.path()).output().context("gzip")?;
        ensure!(packed.status.success(), "gzip: {}", String::from_utf8_lossy(&packed.stderr));
        let name = format!("share/man/man1/{}.gz", page.file_name().to_string_lossy());
        write(&tree.join(name), &packed.stdout, 0o644)?;
    }
    generate("completions")?;
    let completions = generated.path();
    copy(&completions.join("plexus.bash"), "share/bash-completion/completions/plexus", 0o644)?;
    copy(&completions.join("_plexus"), &format!("share/{}/_plexus", places.zsh), 0o644)?;
    copy(&completions.join("plexus.fish"), "share/fish/vendor_completions.d/plexus.fish", 0o644)
}

/// Writes a file and its directories.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    fs::create_dir_all(path.parent().context("a file is in a directory")?)?;
    fs::write(path, bytes).with_context(|| path.display().to_string())?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

/// Makes a symbolic link, in place of an existing one.
fn link(to: &str, path: &Path) -> Result<()> {
    let _ = fs::remove_file(path);
    symlink(to, path).with_context(|| path.display().to_string())
}

/// Returns the name by which programs find the library at run time. It changes with each version
/// that may be incompatible: before version 1 with the second number, then with the first.
fn soname(version: &str) -> String {
    let numbers: Vec<&str> = version.split('.').collect();
    let counted = if numbers[0] == "0" { 2 } else { 1 };
    format!("libplexus.so.{}", numbers[..counted].join("."))
}

/// Makes a tree readable by all users, whatever the umask.
fn make_readable(tree: &Path) -> Result<()> {
    command::run(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(tree))
}

fn pkg_config(prefix: &str, lib: &str) -> String {
    format!(
        "prefix={prefix}
includedir=${{prefix}}/include
libdir=${{prefix}}/{lib}

Name: plexus
Description: Programs of a Plexus cluster
Version: {}
Cflags: -I${{includedir}}
Libs: -L${{libdir}} -lplexus
Libs.private: -lpthread -ldl -lm
",
        env!("CARGO_PKG_VERSION")
    )
}

/// Returns the control file of the package.
fn control(version: &str, architecture: &str, program: &[u8]) -> String {
    format!(
        "Package: plexus
Version: {version}
Architecture: {architecture}
Maintainer: The Plexus developers <plexus@localhost>
Section: admin
Priority: optional
Depends: libc6 (>= 2.{libc}), libgcc-s1
Suggests: libfabric1, bash-completion
Description: makes a handful of Linux servers work as one machine
 Cluster membership, locks, a registry and a cache that the nodes share. The package has the
 program `plexus`, and the C library for programs of the cluster.
",
        libc = newest_glibc(program)
    )
}

/// Returns the minor number of the newest version of the C library that a program names.
fn newest_glibc(program: &[u8]) -> u32 {
    const PREFIX: &[u8] = b"GLIBC_2.";
    let at = program.windows(PREFIX.len()).enumerate().filter(|(_, window)| *window == PREFIX);
    let minors = at.filter_map(|(start, _)| {
        let digits = &program[start + PREFIX.len()..];
        let end = digits.iter().position(|digit| !digit.is_ascii_digit())?;
        std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
    });
    minors.max().unwrap_or_default()
}

/// Returns the time of the last commit, so that the same commit gives the same files.
fn commit_time(root: &Path) -> Result<String> {
    let mut log = Command::new("git");
    let time = command::output(log.args(["log", "-1", "--format=%ct"]).current_dir(root));
    // A source tree without a repository.
    Ok(time.map_or_else(|_| "0".into(), |time| time.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_library_changes_with_incompatible_versions() {
        let names = ["0.1.0", "0.1.7", "0.2.0", "1.4.2", "12.0.0"].map(soname);
        assert_eq!(names, ["0.1", "0.1", "0.2", "1", "12"].map(|series| format!("libplexus.so.{series}")));
    }

    #[test]
    fn package_needs_the_newest_c_library_that_the_program_names() {
        let program = b"..GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0GLIBC_2.x\0GLIBC_PRIVATE";
        assert_eq!(newest_glibc(program), 34);
        let control = control("0.1.0", "amd64", program);
        assert!(control.contains("Depends: libc6 (>= 2.34), libgcc-s1\n"), "{control}");
    }
}
