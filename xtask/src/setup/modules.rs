//! Kernel modules: where they lie, what they need, and in which order to load them.

use std::{
    collections::HashMap,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use object::{Object as _, ObjectSection as _};

/// What kernels have built in whose packages bring no `modules.builtin`, as those of 7.2.
const BUILT_IN_WITHOUT_LIST: [&str; 1] = ["virtio_pci"];

/// The modules of an unpacked kernel package.
#[derive(Debug)]
pub(crate) struct Modules {
    files: HashMap<String, PathBuf>,
    built_in: Vec<String>,
}

impl Modules {
    /// Finds all modules below a directory.
    pub(crate) fn below(directory: &Path) -> Result<Self> {
        let mut files = HashMap::new();
        let mut built_in = None;
        for entry in walkdir::WalkDir::new(directory) {
            let path = entry?.into_path();
            let Some(file) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if file == "modules.builtin" {
                let list = fs::read_to_string(&path)?;
                built_in = Some(list.lines().map(module_name).collect());
            } else if file.contains(".ko") && path.is_file() {
                files.insert(module_name(file), path);
            }
        }
        let built_in = built_in.unwrap_or_else(|| BUILT_IN_WITHOUT_LIST.map(str::to_owned).to_vec());
        Ok(Self { files, built_in })
    }

    /// Whether there is such a module, in a file or built in.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.files.contains_key(name) || self.built_in.iter().any(|built_in| built_in == name)
    }

    /// The wanted modules and all they need, uncompressed, each after those it needs.
    pub(crate) fn with_needed(&self, wanted: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
        let mut loaded = HashMap::new();
        let order = load_order(wanted, |name| {
            let Some(path) = self.files.get(name) else {
                if self.built_in.iter().any(|built_in| built_in == name) {
                    return Ok(None);
                }
                bail!("this kernel has no module {name}, neither in a file nor built in");
            };
            let module = decompressed(path).with_context(|| format!("can't read {}", path.display()))?;
            let (mut needs, algorithms) =
                needs(&module).with_context(|| format!("{} is no module", path.display()))?;
            let generic = algorithms.into_iter().map(|name| format!("{name}_generic"));
            needs.extend(generic.filter(|name| self.files.contains_key(name)));
            loaded.insert(name.to_owned(), module);
            Ok(Some(needs))
        })?;
        Ok(order.into_iter().filter_map(|name| loaded.remove_entry(&name)).collect())
    }
}

/// The kernel takes `-` and `_` in names of modules for the same; files and lists use both.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

/// Orders modules so that each comes after those it needs. Built-in ones (`None`) are left out.
fn load_order(
    wanted: &[&str],
    mut needs: impl FnMut(&str) -> Result<Option<Vec<String>>>,
) -> Result<Vec<String>> {
    fn visit(
        name: &str,
        needs: &mut dyn FnMut(&str) -> Result<Option<Vec<String>>>,
        visited: &mut Vec<String>,
        order: &mut Vec<String>,
    ) -> Result<()> {
        if visited.iter().any(|earlier| earlier == name) {
            return Ok(());
        }
        visited.push(name.to_owned());
        if let Some(needed) = needs(name)? {
            for other in needed {
                visit(&other, needs, visited, order)?;
            }
            order.push(name.to_owned());
        }
        Ok(())
    }

    let mut visited = Vec::new();
    let mut order = Vec::new();
    for name in wanted {
        visit(name, &mut needs, &mut visited, &mut order)?;
    }
    Ok(order)
}

fn decompressed(path: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(path)?;
    let mut module = Vec::new();
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => return Ok(bytes),
        Some("xz") => lzma_rust2::XzReader::new(bytes.as_slice(), true).read_to_end(&mut module)?,
        Some("zst") => ruzstd::decoding::StreamingDecoder::new(bytes.as_slice())?.read_to_end(&mut module)?,
        _ => bail!("the compression is unknown"),
    };
    Ok(module)
}

/// The names behind `depends=` in a module's `.modinfo`, and those behind `softdep=pre:`. The latter are mostly of
/// algorithms, which modules of other names provide, and which may be built in.
fn needs(module: &[u8]) -> Result<(Vec<String>, Vec<String>)> {
    let elf = object::File::parse(module)?;
    let section = elf.section_by_name(".modinfo").context("there is no section .modinfo")?;
    let modinfo = section.data()?;
    Ok((parse_depends(modinfo), parse_soft_depends(modinfo)))
}

fn parse_depends(modinfo: &[u8]) -> Vec<String> {
    let entries = modinfo.split(|&byte| byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok());
    let names = entries.filter_map(|entry| entry.strip_prefix("depends=")).flat_map(|names| names.split(','));
    names.filter(|name| !name.is_empty()).map(module_name).collect()
}

fn parse_soft_depends(modinfo: &[u8]) -> Vec<String> {
    let entries = modinfo.split(|&byte| byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok());
    let lists = entries.filter_map(|entry| entry.strip_prefix("softdep=pre:"));
    let before = lists.filter_map(|list| list.split("post:").next());
    before.flat_map(str::split_ascii_whitespace).map(module_name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_alike_in_files_and_lists() {
        assert_eq!(module_name("kernel/net/sched/sch_fq.ko.xz"), "sch_fq");
        assert_eq!(module_name("crc32c-intel.ko"), "crc32c_intel");
    }

    #[test]
    fn depends_of_modinfo() {
        let modinfo = b"license=GPL\0depends=net_failover,virtio-ring\0retpoline=Y\0";
        assert_eq!(parse_depends(modinfo), ["net_failover", "virtio_ring"]);
        assert!(parse_depends(b"depends=\0name=veth\0").is_empty());
        assert_eq!(parse_soft_depends(b"softdep=pre: crc32c post: late\0depends=x\0"), ["crc32c"]);
        assert!(parse_soft_depends(modinfo).is_empty());
    }

    #[test]
    fn needed_modules_come_first_and_once() {
        let order = load_order(&["virtio_net", "veth", "net_failover"], |name| {
            Ok(match name {
                "virtio_net" => Some(vec!["net_failover".into(), "virtio".into()]),
                "net_failover" => Some(vec!["failover".into()]),
                "virtio" => None,
                _ => Some(Vec::new()),
            })
        });
        assert_eq!(order.unwrap(), ["failover", "net_failover", "virtio_net", "veth"]);
    }

    #[test]
    fn module_that_is_nowhere_is_an_error() {
        let modules = Modules { files: HashMap::new(), built_in: vec!["virtio".into()] };
        assert!(modules.with_needed(&["virtio"]).unwrap().is_empty());
        let message = modules.with_needed(&["veth"]).unwrap_err().to_string();
        assert!(message.contains("no module veth"), "{message}");
    }
}
