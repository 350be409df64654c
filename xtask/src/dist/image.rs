//! An image for container runtimes: the tool, and nothing else that runs.
//!
//! It is an OCI image layout (image-spec 1.1) in one tar file, which `podman load`, `skopeo copy oci-archive:…` and `ctr images
//! import` read. The same files give the same bytes.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use crate::arch::Arch;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Where the tool is in an image.
pub(crate) const PROGRAM: &str = "net-latency";

/// A file of the image, with its path and its permissions.
pub(crate) struct Entry<'a> {
    pub(crate) path: &'a str,
    pub(crate) mode: u32,
    pub(crate) bytes: &'a [u8],
}

/// Writes an image that starts the first of the files of its architecture, which were made `created` seconds after 1970.
pub(crate) fn write<const FILES: usize>(
    files: &[(Arch, [Entry<'_>; FILES])],
    created: u64,
    target: &Path,
) -> Result<()> {
    let images = files.iter().map(|(arch, files)| Image::new(*arch, files, created));
    std::fs::write(target, archive(&images.collect::<Result<Vec<_>>>()?, created)?)
        .with_context(|| format!("can't write {}", target.display()))
}

/// What it consists of.
struct Image {
    arch: Arch,
    layer: Blob,
    config: Blob,
    manifest: Blob,
}

/// Bytes that are known by their checksum.
struct Blob {
    media: &'static str,
    digest: String,
    bytes: Vec<u8>,
}

impl Blob {
    fn new(media: &'static str, bytes: Vec<u8>) -> Self {
        let digest = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { media, digest, bytes }
    }

    fn json(media: &'static str, value: &Value) -> Result<Self> {
        Ok(Self::new(media, serde_json::to_vec(value)?))
    }

    fn descriptor(&self) -> Value {
        json!({
            "mediaType": self.media,
            "digest": format!("sha256:{}", self.digest),
            "size": self.bytes.len(),
        })
    }
}

impl Image {
    fn new(arch: Arch, files: &[Entry<'_>], created: u64) -> Result<Self> {
        let program = files.first().context("an image starts something")?.path;
        let layer = Blob::new(LAYER, packed(files, created)?);
        let config = json!({
            "architecture": arch.debian(),
            "os": "linux",
            "config": {
                // It attaches to the kernel: capabilities are worth something only to root, which the manifests ask for too.
                "User": "0:0",
                "Entrypoint": [format!("/{program}")],
                "WorkingDir": "/",
                "Labels": {
                    "org.opencontainers.image.title": "net-latency",
                    "org.opencontainers.image.description":
                        "Shows where network packets spend their time in the kernel",
                    "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
                    "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
                },
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", layer.digest)] },
        });
        let config = Blob::json(CONFIG, &config)?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor(),
            "layers": [layer.descriptor()],
        });
        Ok(Self { arch, layer, config, manifest: Blob::json(MANIFEST, &manifest)? })
    }

    /// The manifest as an index names it.
    fn descriptor(&self) -> Value {
        let mut manifest = self.manifest.descriptor();
        manifest["platform"] = json!({ "architecture": self.arch.debian(), "os": "linux" });
        manifest
    }
}

/// An index of these manifests.
fn index_of(manifests: &[Value]) -> Result<Blob> {
    Blob::json(INDEX, &json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests }))
}

/// The layout of an image for these architectures, as a tar file. Of several an index of its own lists the manifests, since a runtime that
/// finds more than one in the layout's does not know which to take.
fn archive(images: &[Image], created: u64) -> Result<Vec<u8>> {
    let several = match images {
        [_] => None,
        _ => Some(index_of(&images.iter().map(Image::descriptor).collect::<Vec<_>>())?),
    };
    let mut image = several.as_ref().map_or_else(|| images[0].descriptor(), Blob::descriptor);
    image["annotations"] = json!({ "org.opencontainers.image.ref.name": env!("CARGO_PKG_VERSION") });
    let index = index_of(&[image])?.bytes;
    let layout = serde_json::to_vec(&json!({ "imageLayoutVersion": "1.0.0" }))?;
    let mut files = vec![("oci-layout".to_owned(), layout.as_slice()), ("index.json".to_owned(), &index)];
    let blobs = images.iter().flat_map(|image| [&image.config, &image.layer, &image.manifest]);
    for Blob { digest, bytes, .. } in blobs.chain(&several) {
        files.push((format!("blobs/sha256/{digest}"), bytes));
    }
    let entry = |(path, bytes)| Entry { path, mode: 0o644, bytes };
    packed(&files.iter().map(|(path, bytes)| entry((path, bytes))).collect::<Vec<_>>(), created)
}

/// A tar file of root's files, with their directories.
fn packed(files: &[Entry<'_>], created: u64) -> Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    let mut made = Vec::new();
    let header = |kind, mode, size| {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(created);
        header.set_size(size);
        header
    };
    for Entry { path, mode, bytes } in files {
        for (end, _) in path.match_indices('/') {
            let directory = &path[..=end];
            if !made.contains(&directory) {
                tar.append_data(&mut header(EntryType::Directory, 0o755, 0), directory, &b""[..])?;
                made.push(directory);
            }
        }
        tar.append_data(&mut header(EntryType::Regular, *mode, bytes.len() as u64), path, *bytes)?;
    }
    Ok(tar.into_inner()?)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, io::Read as _};

    use tar::Archive;

    use super::*;

    fn files() -> [Entry<'static>; 2] {
        [
            Entry { path: "net-latency", mode: 0o755, bytes: b"program" },
            Entry { path: "usr/share/doc/NOTICES.txt", mode: 0o644, bytes: b"licences" },
        ]
    }

    /// Paths, permissions and contents.
    fn unpacked(bytes: &[u8]) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut archive = Archive::new(bytes);
        let read = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
            let mut entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()), (0, 0, 7));
            let mode = header.mode().unwrap();
            let path = entry.path().unwrap().to_str().unwrap().to_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            (path, (mode, bytes))
        };
        archive.entries().unwrap().map(read).collect()
    }

    fn image(arch: Arch, created: u64) -> Image {
        Image::new(arch, &files(), created).unwrap()
    }

    fn json(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).unwrap()
    }

    /// What a descriptor tells of, as it tells it.
    fn blob(archive: &BTreeMap<String, (u32, Vec<u8>)>, descriptor: &Value) -> Vec<u8> {
        let hex = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let (_, bytes) = &archive[&format!("blobs/sha256/{hex}")];
        assert_eq!(descriptor["size"], bytes.len());
        assert_eq!(Blob::new("", bytes.clone()).digest, hex);
        bytes.clone()
    }

    #[test]
    fn an_image_of_two_architectures_has_one_name() {
        let images = [Arch::X86_64, Arch::Arm64].map(|arch| image(arch, 7));
        let archive = unpacked(&archive(&images, 7).unwrap());
        let index = json(&archive["index.json"].1);
        assert_eq!(index["manifests"].as_array().unwrap().len(), 1);
        assert_eq!(index["manifests"][0]["mediaType"], INDEX);
        let inner = json(&blob(&archive, &index["manifests"][0]));
        for (manifest, arch) in inner["manifests"].as_array().unwrap().iter().zip(["amd64", "arm64"]) {
            assert_eq!(manifest["platform"]["architecture"], arch);
            let config = json(&blob(&archive, manifest))["config"].clone();
            assert_eq!(json(&blob(&archive, &config))["architecture"], arch);
        }
        assert_eq!(inner["manifests"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn all_of_an_image_is_found_by_its_checksum() {
        let archive = unpacked(&archive(&[image(Arch::Arm64, 7)], 7).unwrap());
        let blob = |descriptor: &Value| blob(&archive, descriptor);
        let index = json(&archive["index.json"].1);
        let manifest = json(&blob(&index["manifests"][0]));
        let config = json(&blob(&manifest["config"]));
        assert_eq!(config["architecture"], "arm64");
        assert_eq!(index["manifests"][0]["platform"], json!({ "architecture": "arm64", "os": "linux" }));
        assert_eq!(config["config"]["Entrypoint"], json!(["/net-latency"]));
        assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
        let layer = unpacked(&blob(&manifest["layers"][0]));
        let paths: Vec<_> = layer.iter().map(|(path, (mode, _))| (path.as_str(), *mode)).collect();
        let expected = [
            ("net-latency", 0o755),
            ("usr/", 0o755),
            ("usr/share/", 0o755),
            ("usr/share/doc/", 0o755),
            ("usr/share/doc/NOTICES.txt", 0o644),
        ];
        assert_eq!(paths, expected);
        assert_eq!(layer["net-latency"].1, b"program");
    }

    #[test]
    fn the_same_files_give_the_same_bytes() {
        let bytes = |created| archive(&[image(Arch::X86_64, created)], created).unwrap();
        assert_eq!(bytes(7), bytes(7));
        assert_ne!(bytes(7), bytes(8));
    }
}
