//! The registry over real files: what it survives, repairs and refuses.

use std::{
    fs,
    path::{Path, PathBuf},
};

use plexus_registry::{
    Files, Registry, RegistryError,
    protocol::{Bad, Change, ClusterName, Command, Failed, Key, Refused, Unopened},
};
use tempfile::TempDir;

const OURS: ClusterName = ClusterName(1);
const OTHERS: ClusterName = ClusterName(2);

struct Place(TempDir);

impl Place {
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

    fn create(&self, cluster: ClusterName) -> Registry {
        Registry::create(self.files(), cluster).unwrap()
    }

    fn open(&self, known: u64) -> Result<Registry, RegistryError> {
        Registry::open(self.files(), OURS, known)
    }

    fn refused(&self, known: u64) -> Unopened {
        match self.open(known) {
            Err(RegistryError::Unopened { why, .. }) => why,
            other => panic!("{:?}", other.map(|registry| registry.contents().clone())),
        }
    }
}

fn set(registry: &mut Registry, key: &str, value: &str) -> u64 {
    let change = Change::set(Key::new(key).unwrap(), value.as_bytes());
    registry.command(None, Command::Change(change)).unwrap()
}

fn value(registry: &Registry, key: &str) -> Option<String> {
    registry.contents().entry(key).map(|entry| String::from_utf8(entry.value.to_vec()).unwrap())
}

fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn what_was_set_is_there_after_a_start_and_one_bad_copy_is_repaired() {
    let place = Place::new();
    let mut registry = place.create(OURS);
    assert_eq!(set(&mut registry, "nodes/n1/address", "10.0.0.1"), 1);
    assert_eq!(set(&mut registry, "nodes/n1/address", "10.0.0.2"), 2);
    assert_eq!(registry.take_changes().iter().map(|changed| changed.generation).collect::<Vec<_>>(), [1, 2]);
    drop(registry);
    let [one, two] = place.copies();
    let good = fs::read(&one).unwrap();
    let bad: [fn(&Path); 4] = [
        damage,
        |path| fs::remove_file(path).unwrap(),
        |path| fs::write(path, "").unwrap(),
        |path| {
            fs::write(path, vec![7; 20 << 20]).unwrap();
        },
    ];
    for (copy, spoil) in [&one, &two].into_iter().flat_map(|copy| bad.map(|spoil| (copy, spoil))) {
        spoil(copy);
        let registry = place.open(2).unwrap();
        assert_eq!(value(&registry, "nodes/n1/address").as_deref(), Some("10.0.0.2"));
        assert_eq!(registry.trouble().count(), 0);
        assert_eq!((fs::read(&one).unwrap(), fs::read(&two).unwrap()), (good.clone(), good.clone()));
    }
}

#[test]
fn nothing_is_guessed_and_nothing_of_others_is_overwritten() {
    let (place, other) = (Place::new(), Place::new());
    set(&mut place.create(OURS), "a", "1");
    other.create(OTHERS);
    let [one, two] = place.copies();
    let old = fs::read(&one).unwrap();
    set(&mut place.open(1).unwrap(), "a", "2");

    // A copy from before alone.
    fs::write(&one, &old).unwrap();
    let newest = fs::read(&two).unwrap();
    fs::remove_file(&two).unwrap();
    assert_eq!(place.refused(2), Unopened::Old { found: 1, known: 2 });
    fs::write(&two, &newest).unwrap();
    assert_eq!(value(&place.open(2).unwrap(), "a").as_deref(), Some("2"));

    let foreign = fs::read(&other.copies()[0]).unwrap();
    fs::write(&two, &foreign).unwrap();
    assert_eq!(place.refused(2), Unopened::NotOurs { copy: 1, bad: Bad::Foreign(OTHERS) });
    assert_eq!(fs::read(&two).unwrap(), foreign);

    damage(&one);
    fs::remove_file(&two).unwrap();
    assert!(matches!(place.refused(0), Unopened::NoCopy { .. }));
    assert!(matches!(Registry::create(place.files(), OURS), Err(RegistryError::Exists { .. })));
    assert!(Files::new([one.clone(), one]).is_err());
}

#[test]
fn a_copy_that_cannot_be_written_is_said_and_mended_later() {
    let place = Place::new();
    let mut registry = place.create(OURS);
    let directory = place.path("second");
    let away = place.path("away");
    fs::rename(&directory, &away).unwrap();
    assert_eq!(set(&mut registry, "a", "1"), 1);
    let trouble: Vec<_> = registry.trouble().map(str::to_owned).collect();
    assert!(trouble.len() == 1 && trouble[0].contains("second/registry"), "{trouble:?}");
    fs::rename(&away, &directory).unwrap();
    registry.repair();
    assert_eq!(registry.trouble().count(), 0);
    let [one, two] = place.copies();
    assert_eq!(fs::read(one).unwrap(), fs::read(two).unwrap());
}

#[test]
fn when_neither_can_be_written_it_says_so_and_goes_on_afterwards() {
    let place = Place::new();
    let mut registry =
        Registry::create(Files::new([place.path("second/a"), place.path("second/b")]).unwrap(), OURS)
            .unwrap();
    fs::rename(place.path("second"), place.path("away")).unwrap();
    let change = Command::Change(Change::set(Key::new("a").unwrap(), b"1"));
    let error = registry.command(None, change).unwrap_err();
    let unsaved = RegistryError::Failed { failed: Failed::Unsaved { generation: 1 }, last: None };
    assert!(
        error.to_string().starts_with(&unsaved.to_string()) && error.to_string().contains("No such file")
    );
    assert_eq!(value(&registry, "a"), None);
    fs::rename(place.path("away"), place.path("second")).unwrap();
    assert_eq!(set(&mut registry, "a", "2"), 2);
}

#[test]
fn a_backup_brings_everything_back_above_all_generations() {
    let place = Place::new();
    let mut registry = place.create(OURS);
    set(&mut registry, "a", "1");
    let backup = place.path("backup");
    registry.backup(&backup).unwrap();
    set(&mut registry, "a", "2");
    set(&mut registry, "b", "2");
    assert_eq!(registry.restore(None, &backup).unwrap(), 4);
    assert_eq!((value(&registry, "a").as_deref(), value(&registry, "b")), (Some("1"), None));
    assert!(registry.take_changes()[3].whole);
    drop(registry);

    // Both copies are gone; the voting state knows of generation 9.
    place.copies().iter().for_each(|copy| damage(copy));
    let registry = Registry::create_from(place.files(), OURS, 9, &backup).unwrap();
    assert_eq!((registry.contents().generation(), value(&registry, "a").as_deref()), (10, Some("1")));
    assert_eq!(registry.contents().entry("a").unwrap().version, 10);
    drop(registry);
    assert_eq!(place.open(10).unwrap().contents().generation(), 10);
    let endless = Registry::create_from(place.files(), OURS, u64::MAX, &backup);
    assert!(matches!(
        endless,
        Err(RegistryError::Unopened { why: Unopened::Refused(Refused::Generation { .. }), .. })
    ));
}

#[test]
fn a_backup_that_is_damaged_or_of_another_cluster_changes_nothing() {
    let (place, other) = (Place::new(), Place::new());
    let mut registry = place.create(OURS);
    set(&mut registry, "a", "1");
    let (good, bad, foreign) = (place.path("good"), place.path("bad"), place.path("foreign"));
    registry.backup(&good).unwrap();
    registry.backup(&bad).unwrap();
    damage(&bad);
    other.create(OTHERS).backup(&foreign).unwrap();
    for (path, expected) in [(&bad, None), (&foreign, Some(Bad::Foreign(OTHERS))), (&place.copies()[0], None)]
    {
        match registry.restore(None, path) {
            Err(RegistryError::Backup { bad, .. }) => {
                assert!(expected.is_none_or(|expected| bad == expected))
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(registry.contents().generation(), 1);
    // And a backup is no copy.
    fs::copy(&good, &place.copies()[0]).unwrap();
    fs::remove_file(&place.copies()[1]).unwrap();
    assert!(matches!(place.refused(0), Unopened::NoCopy { .. }));
}
