//! Files by their names, beside keys: what programs that name them do with a pool.

mod fixture;

use fixture::Fixture;
use holdfast::{Durability, Pool, is_value};
use holdfast_client::abi::{O_CREAT, O_DIRECTORY, O_RDONLY, O_RDWR, O_TMPFILE_BIT};

/// The same for the owner, and through a proxy.
fn both_ways(test: fn(&Pool)) {
    for fixture in [Fixture::new(64 << 20), Fixture::served(64 << 20)] {
        test(&fixture.open());
        fixture.check();
    }
}

#[test]
fn a_file_without_a_name_gets_one() {
    both_ways(name_later);
}

fn name_later(pool: &Pool) {
    let root = pool.root(0o027).unwrap();
    root.mkdir(b"d", 0o777).unwrap();
    let dir = root.open(b"d", O_RDONLY | O_DIRECTORY, 0).unwrap();
    assert_eq!(dir.stat().unwrap().mode & 0o7777, 0o750);
    let file = dir
        .open(b".", O_TMPFILE_BIT | O_DIRECTORY | O_RDWR, 0o666)
        .unwrap();
    file.write_all_at(b"content", 8192).unwrap();
    assert!(dir.entries().unwrap().is_empty());
    file.name(&dir, b"f").unwrap();
    assert_eq!(file.name(&dir, b"f").unwrap_err().errno(), 17);
    let stat = root.stat_at(b"d/f", false).unwrap();
    assert_eq!((stat.size, stat.mode & 0o7777), (8199, 0o640));
    assert_eq!(file.data_from(0).unwrap(), Some(8192));
    assert_eq!(file.data_from(8199).unwrap(), None);

    // Attributes, by the file and by its name.
    file.set_attribute(b"user.a", b"b").unwrap();
    assert_eq!(file.attributes().unwrap(), [b"user.a".to_vec()]);
    assert_eq!(file.attribute(b"user.a").unwrap(), Some(b"b".to_vec()));
    file.remove_attribute(b"user.a").unwrap();
    assert_eq!(file.attribute(b"user.a").unwrap(), None);
    dir.chmod(b"f", 0o600).unwrap();
    file.set_times(b"", [1, 2]).unwrap();
    let stat = file.stat().unwrap();
    assert_eq!((stat.mode & 0o7777, stat.atime, stat.mtime), (0o600, 1, 2));
}

#[test]
fn a_keyspace_as_it_is_now_has_files_that_came_just_now() {
    both_ways(read_at_once);
}

fn read_at_once(pool: &Pool) {
    let keyspace = pool.keyspace_or_create("k").unwrap();
    let root = pool.root(0).unwrap();
    for i in 0..300 {
        let name = format!("k/{i}");
        let file = root.open(name.as_bytes(), O_CREAT | O_RDWR, 0o644);
        file.unwrap().write_all_at(name.as_bytes(), 0).unwrap();
        let now = keyspace.read().unwrap();
        let found = now.get(i.to_string().as_bytes()).unwrap();
        assert_eq!(found, Some(name.into_bytes()));
    }
}

#[test]
fn names_are_changed_and_content_is_copied() {
    both_ways(change_names);
}

fn change_names(pool: &Pool) {
    let root = pool.root(0).unwrap();
    let old = root.open(b"old", O_CREAT | O_RDWR, 0o644).unwrap();
    old.write_all_at(b"0123456789", 0).unwrap();
    let new = root.open(b"new", O_CREAT | O_RDWR, 0o644).unwrap();
    assert!(new.is_beside(&old));
    assert_eq!(new.copy_at(&old, 4, 100).unwrap(), 6);
    let mut room = [0; 10];
    assert_eq!(new.read_at(&mut room, 0).unwrap(), 10);
    assert_eq!(&room, b"\0\0\0\x00456789");
    root.link(b"new", &root, b"second").unwrap();
    root.rename(b"second", b"old").unwrap();
    root.symlink(b"old", b"link").unwrap();
    assert_eq!(root.readlink(b"link").unwrap(), b"old");
    assert_eq!(root.stat_at(b"link", true).unwrap().nlink, 2);
    root.unlink(b"new").unwrap();
    root.mknod(b"pipe", 0o010600, 0).unwrap();
    let listed = root.open(b"/", O_RDONLY | O_DIRECTORY, 0).unwrap();
    let mut names = listed.entries().unwrap();
    names.sort_by(|a, b| a.1.cmp(&b.1));
    let names: Vec<_> = names
        .into_iter()
        .map(|(_, name, kind)| (name, kind))
        .collect();
    let wanted: [(&[u8], u8); 3] = [(b"link", 10), (b"old", 8), (b"pipe", 1)];
    assert_eq!(names, wanted.map(|(name, kind)| (name.to_vec(), kind)));
}

#[test]
fn directories_of_keyspaces_are_known_as_such() {
    both_ways(know_keyspaces);
}

fn know_keyspaces(pool: &Pool) {
    let keyspace = pool.keyspace_or_create("ks").unwrap();
    keyspace.put(b"k", b"value", Durability::Durable).unwrap();
    let root = pool.root(0).unwrap();
    root.mkdir(b"plain", 0o755).unwrap();
    root.mkdir(b"plain/ks", 0o755).unwrap();
    let known = |path: &[u8], name: &[u8]| {
        let dir = root.open(path, O_RDONLY | O_DIRECTORY, 0).unwrap();
        let keyspace = dir.keyspace(name).unwrap();
        keyspace.map(|keyspace| keyspace.name().to_owned())
    };
    assert_eq!(known(b"ks", b"ks").as_deref(), Some("ks"));
    assert_eq!(known(b"plain/../ks", b"other").as_deref(), Some("ks"));
    assert_eq!(known(b"plain/ks", b"ks"), None);
    assert_eq!(known(b"plain", b"plain"), None);
    assert_eq!(known(b"/", b""), None);
    let dir = root.open(b"ks", O_RDONLY | O_DIRECTORY, 0).unwrap();
    assert!(is_value(dir.entries().unwrap()[0].0));
    assert!(!is_value(dir.stat().unwrap().ino));
}
