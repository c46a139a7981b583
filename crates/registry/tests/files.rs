//! The two copies as real files: damage, repair and refusals; backups.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
};

use plexus_registry::{
    Copies, CopiesError, Files,
    protocol::{Change, ClusterName, Contents, ImageError, Key, OpenError, Opened},
    read_backup, write_backup,
};
use tempfile::TempDir;

const OURS: ClusterName = ClusterName(1);
const OTHERS: ClusterName = ClusterName(2);

struct TestDir(TempDir);

impl TestDir {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir(place.path("second")).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn copies(&self) -> [PathBuf; 2] {
        [self.path("registry"), self.path("second/registry")]
    }

    fn files(&self) -> Files {
        Files::new(self.copies()).unwrap()
    }

    fn open(&self) -> (Copies, Opened) {
        Copies::open(self.files(), OURS).unwrap()
    }

    fn refused(&self) -> OpenError {
        match Copies::open(self.files(), OURS) {
            Err(CopiesError::Unopened { why, .. }) => why,
            other => panic!("{:?}", other.map(|(_, opened)| opened)),
        }
    }
}

/// Returns contents with the generations up to `generation`, all of the key `a`.
fn contents(cluster: ClusterName, generation: u64) -> Contents {
    let mut contents = Contents::new(cluster);
    for number in 1..=generation {
        let change = Change::set(Key::new("a").unwrap(), number.to_string().as_bytes());
        contents.change(number, None, &change).unwrap();
    }
    contents
}

fn save(copies: &mut Copies, generation: u64) -> Option<u64> {
    copies.save(Arc::new(contents(OURS, generation)))
}

fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn saved_contents_survive_a_restart_and_a_bad_copy_is_reported_and_replaced() {
    let place = TestDir::new();
    let (mut copies, opened) = place.open();
    assert_eq!((opened.contents.generation(), opened.is_lost, copies.trouble().count()), (0, false, 0));
    assert_eq!(save(&mut copies, 1), Some(1));
    let [one, two] = place.copies();
    let bad: [fn(&Path); 4] = [
        damage,
        |path| fs::remove_file(path).unwrap(),
        |path| fs::write(path, "").unwrap(),
        |path| fs::write(path, vec![7; 20 << 20]).unwrap(),
    ];
    let cases = [&one, &two].into_iter().flat_map(|copy| bad.map(|spoil| (copy, spoil)));
    for (generation, (copy, spoil)) in (2..).zip(cases) {
        assert_eq!(save(&mut copies, generation), Some(generation));
        spoil(copy);
        let (again, opened) = place.open();
        copies = again;
        assert_eq!(opened.contents, contents(OURS, generation));
        let trouble: Vec<_> = copies.trouble().map(str::to_owned).collect();
        assert!(trouble.len() == 1 && trouble[0].starts_with(copy.to_str().unwrap()), "{trouble:?}");
    }
    assert_eq!(save(&mut copies, 100), Some(100));
    assert_eq!(copies.trouble().count(), 0);
    assert_eq!(fs::read(&one).unwrap(), fs::read(&two).unwrap());
}

#[test]
fn contradicting_copies_are_refused_and_foreign_copies_are_not_overwritten() {
    let (place, other) = (TestDir::new(), TestDir::new());
    save(&mut place.open().0, 1);
    let [one, two] = place.copies();
    Copies::open(other.files(), OTHERS).unwrap().0.save(Arc::new(contents(OTHERS, 1)));
    let foreign = fs::read(&other.copies()[0]).unwrap();
    fs::write(&two, &foreign).unwrap();
    assert_eq!(place.refused(), OpenError::NotOurs { copy: 1, bad: ImageError::Foreign(OTHERS) });
    assert_eq!(fs::read(&two).unwrap(), foreign);

    damage(&one);
    fs::remove_file(&two).unwrap();
    let (copies, opened) = place.open();
    assert!(opened.is_lost && opened.contents.generation() == 0);
    assert_eq!(copies.trouble().count(), 2);
}

#[test]
fn copies_in_each_others_way_are_refused() {
    let place = TestDir::new();
    symlink(place.path("second"), place.path("link")).unwrap();
    for [one, two] in
        [["r", "r"], ["r", "r.new"], ["r.new", "r"], ["second/r", "link/r"], ["r", "second/../r"]]
    {
        assert!(Files::new([place.path(one), place.path(two)]).is_err(), "{one} {two}");
    }
    assert!(Files::new([place.path("r.1"), place.path("r.2")]).is_ok());
}

#[test]
fn a_copy_that_cannot_be_written_is_reported_and_repaired_later() {
    let place = TestDir::new();
    let mut copies = place.open().0;
    fs::rename(place.path("second"), place.path("away")).unwrap();
    assert_eq!(save(&mut copies, 1), Some(1));
    let trouble: Vec<_> = copies.trouble().map(str::to_owned).collect();
    assert!(trouble.len() == 1 && trouble[0].contains("second/registry"), "{trouble:?}");
    fs::rename(place.path("away"), place.path("second")).unwrap();
    assert_eq!(copies.repair(), None);
    assert_eq!(copies.trouble().count(), 0);
    let [one, two] = place.copies();
    assert_eq!(fs::read(one).unwrap(), fs::read(two).unwrap());
}

#[test]
fn when_neither_can_be_written_nothing_is_saved_until_one_can() {
    let place = TestDir::new();
    let files = Files::new([place.path("second/a"), place.path("second/b")]).unwrap();
    let mut copies = Copies::open(files, OURS).unwrap().0;
    fs::rename(place.path("second"), place.path("away")).unwrap();
    assert_eq!(save(&mut copies, 1), None);
    assert_eq!(copies.repair(), None);
    assert_eq!(copies.trouble().filter(|what| what.contains("No such file")).count(), 2);
    fs::rename(place.path("away"), place.path("second")).unwrap();
    assert_eq!(copies.repair(), Some(1));
    assert_eq!(copies.trouble().count(), 0);
}

#[test]
fn a_backup_holds_its_contents_and_replaces_only_a_backup() {
    let place = TestDir::new();
    save(&mut place.open().0, 3);
    let (backup, files) = (place.path("backup"), place.files());
    let places = files.places();
    write_backup(&backup, &contents(OURS, 2), places).unwrap();
    write_backup(&backup, &contents(OURS, 3), places).unwrap();
    assert_eq!(read_backup(&backup, OURS).unwrap(), contents(OURS, 3));

    let other = place.path("other");
    fs::write(&other, "[cluster]").unwrap();
    for (path, is_place) in [
        (other, false),
        (place.path("second"), false),
        (place.copies()[0].clone(), true),
        (place.path("second/../registry.new"), true),
    ] {
        let refused = write_backup(&path, &contents(OURS, 3), places).unwrap_err();
        assert_eq!(matches!(refused, CopiesError::Place { .. }), is_place, "{refused}");
    }
    assert_eq!(fs::read_to_string(place.path("other")).unwrap(), "[cluster]");
    assert_eq!(place.open().1.contents, contents(OURS, 3));

    // A backup is not accepted as a copy, nor a copy as a backup.
    let copy = place.copies()[0].clone();
    assert!(matches!(read_backup(&copy, OURS), Err(CopiesError::Backup { .. })));
    assert!(matches!(
        read_backup(&backup, OTHERS),
        Err(CopiesError::Backup { bad: ImageError::Foreign(OURS), .. })
    ));
    fs::copy(&backup, &copy).unwrap();
    fs::remove_file(&place.copies()[1]).unwrap();
    assert!(place.open().1.is_lost);
    damage(&backup);
    assert!(matches!(
        read_backup(&backup, OURS),
        Err(CopiesError::Backup { bad: ImageError::Damaged(_), .. })
    ));
}
