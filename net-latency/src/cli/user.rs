//! Users by name or number, as /etc/passwd and /etc/group have them. The binary is static, so that it can't ask the C
//! library, which would look elsewhere too (LDAP, sssd).

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::ErrorKind,
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use crate::{error::Failure, request::User};

/// The user that `asked` names, by the files in `etc`.
pub(super) fn find(asked: &str, etc: &Path) -> Result<User, Failure> {
    let read = |name: &str| match fs::read(etc.join(name)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(|error| {
            let path = etc.join(name);
            Failure::Usage(format!("--user {asked}: cannot read {}: {error}", path.display()))
        }),
    };
    look_up(asked, &read("passwd")?, &read("group")?).ok_or_else(|| {
        Failure::Usage(format!(
            "--user {asked}: {} has no such user; `cut -d: -f1 {0}` lists its users; for one of LDAP give the number that \
             `id -u NAME` prints",
            etc.join("passwd").display()
        ))
    })
}

/// The same by the texts of the two files.
fn look_up(asked: &str, passwd: &[u8], group: &[u8]) -> Option<User> {
    let users = || passwd.split(|&byte| byte == b'\n').filter_map(Entry::parse);
    let by_name = || users().find(|user| user.name == asked.as_bytes());
    // A name may be a number too, and is a name first, as for chown.
    let known =
        by_name().or_else(|| number(asked.as_bytes()).and_then(|uid| users().find(|user| user.uid == uid)));
    let Some(Entry { name, uid, gid, home, shell }) = known else {
        let number = number(asked.as_bytes())?;
        return Some(User {
            name: asked.to_owned(),
            uid: number,
            gid: number,
            groups: vec![number],
            home: "/".into(),
            shell: "/bin/sh".into(),
        });
    };
    let of_member = |line: &[u8]| {
        let mut fields = line.split(|&byte| byte == b':').skip(2);
        let gid = number(fields.next()?)?;
        let mut members = fields.next()?.split(|&byte| byte == b',');
        members.any(|member| member == name).then_some(gid)
    };
    let mut groups = vec![gid];
    groups.extend(group.split(|&byte| byte == b'\n').filter_map(of_member));
    groups.sort_unstable();
    groups.dedup();
    let or = |field: &[u8], usual: &str| -> OsString {
        if field.is_empty() { usual.into() } else { OsStr::from_bytes(field).to_owned() }
    };
    let name = String::from_utf8(name.to_vec()).unwrap_or_else(|_| uid.to_string());
    Some(User { name, uid, gid, groups, home: or(home, "/"), shell: or(shell, "/bin/sh") })
}

/// A line of /etc/passwd.
struct Entry<'a> {
    name: &'a [u8],
    uid: u32,
    gid: u32,
    home: &'a [u8],
    shell: &'a [u8],
}

impl<'a> Entry<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let fields: Vec<_> = line.split(|&byte| byte == b':').collect();
        let &[name, _password, uid, gid, _comment, home, shell] = fields.as_slice() else { return None };
        (!name.is_empty()).then_some(())?;
        Some(Self { name, uid: number(uid)?, gid: number(gid)?, home, shell })
    }
}

/// An id. All bits are none: to the kernel that is "as it was".
fn number(text: &[u8]) -> Option<u32> {
    let digits = str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok().filter(|&number| number != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/bash
# a comment
daemon:x:1:1::/usr/sbin:/usr/sbin/nologin
www:x:33:33:of the web:/var/www:
broken:x:many:1::/:/bin/sh
short:x:7:7
+nis
all:x:4294967295:1::/:/bin/sh
1000:x:2000:2000::/home/1000:/bin/sh
alice:x:1000:100:Alice,,,:/home/alice:/bin/zsh
";
    const GROUP: &str = "\
root:x:0:
adm:x:4:daemon,alice
malice:x:5:malice,alic,alicex
none:x:4294967295:alice
broken:x:ten:alice
users:x:100:alice
audio:x:29:alice
";

    fn user(asked: &str) -> Option<User> {
        look_up(asked, PASSWD.as_bytes(), GROUP.as_bytes())
    }

    #[test]
    fn a_user_has_its_groups_and_its_home() {
        let alice = User {
            name: "alice".to_owned(),
            uid: 1000,
            gid: 100,
            groups: vec![4, 29, 100],
            home: "/home/alice".into(),
            shell: "/bin/zsh".into(),
        };
        assert_eq!(user("alice"), Some(alice));
        let www = user("www").expect("it is there");
        assert_eq!((www.groups, www.shell), (vec![33], "/bin/sh".into()));
    }

    #[test]
    fn a_number_is_a_user_id() {
        assert_eq!(user("33"), user("www"));
        assert_eq!(user("1000").expect("a name that is a number").uid, 2000);
        let unknown = user("1234").expect("a number");
        assert_eq!((unknown.name.as_str(), unknown.uid, unknown.gid), ("1234", 1234, 1234));
        assert_eq!((unknown.groups, unknown.home), (vec![1234], "/".into()));
    }

    #[test]
    fn who_is_not_there_is_told_with_the_remedy() {
        let etc = tempfile::tempdir().expect("temporary directory");
        fs::write(etc.path().join("passwd"), PASSWD).expect("writable");
        let told = |asked: &str| {
            let failure = find(asked, etc.path()).expect_err("nobody");
            assert_eq!(failure.exit_code(), 2);
            failure.to_string().replace(etc.path().to_str().expect("UTF-8"), "/etc")
        };
        insta::assert_snapshot!(told("bob"));
        for asked in
            ["", "broken", "short", "+nis", "all", "4294967295", "4294967296", "-1", "+5", "# a comment"]
        {
            told(asked);
        }
        // /etc/group isn't there, which only means that there are no others.
        assert_eq!(find("alice", etc.path()).expect("there").groups, [100]);
        fs::create_dir(etc.path().join("group")).expect("writable");
        let failure = find("alice", etc.path()).expect_err("unreadable");
        assert!(failure.to_string().contains("cannot read"), "{failure}");
    }

    const WORDS: &[&str] = &["\nalice:x:5:5::/:\n", ":", "4294967295", "alice", ",", "0", "\n"];

    #[test]
    fn fuzz_users() {
        let seeds = [PASSWD, GROUP].map(|text| text.as_bytes().to_vec());
        crate::fuzz::run("users", 300, seeds, WORDS, |bytes| {
            for (passwd, group) in [(bytes, GROUP.as_bytes()), (PASSWD.as_bytes(), bytes)] {
                for asked in ["alice", "1000", "www"] {
                    let Some(user) = look_up(asked, passwd, group) else { continue };
                    let mut ids = user.groups.iter().chain([&user.uid, &user.gid]);
                    assert!(ids.all(|&id| id != u32::MAX) && user.groups.contains(&user.gid));
                }
            }
        });
    }
}
