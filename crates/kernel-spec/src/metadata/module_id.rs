//! Whether a kernel's id may become the name of a Python module.
//!
//! The Python library puts a kernel into `sys.modules` under its id, whatever that is: an id `json`
//! replaces the standard library's module, and when the import fails the real one is gone. Here an
//! id must be a plain identifier that shadows nothing a kernel or its host could import.

use crate::error::{Error, Result};

/// The longest id. File names end at 255 bytes on most systems, and ids become parts of them.
const LONGEST: usize = 200;

/// Reserved words of Python.
#[rustfmt::skip]
const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue",
    "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import",
    "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while",
    "with", "yield",
];

/// Modules of the standard library, Python 3.11 to 3.14, without those that start with `_`.
#[rustfmt::skip]
const STANDARD_LIBRARY: [&str; 219] = [
    "abc", "aifc", "annotationlib", "antigravity", "argparse", "array", "ast", "asynchat",
    "asyncio", "asyncore", "atexit", "audioop", "base64", "bdb", "binascii", "bisect", "builtins",
    "bz2", "cProfile", "calendar", "cgi", "cgitb", "chunk", "cmath", "cmd", "code", "codecs",
    "codeop", "collections", "colorsys", "compileall", "compression", "concurrent", "configparser",
    "contextlib", "contextvars", "copy", "copyreg", "crypt", "csv", "ctypes", "curses",
    "dataclasses", "datetime", "dbm", "decimal", "difflib", "dis", "distutils", "doctest", "email",
    "encodings", "ensurepip", "enum", "errno", "faulthandler", "fcntl", "filecmp", "fileinput",
    "fnmatch", "fractions", "ftplib", "functools", "gc", "genericpath", "getopt", "getpass",
    "gettext", "glob", "graphlib", "grp", "gzip", "hashlib", "heapq", "hmac", "html", "http",
    "idlelib", "imaplib", "imghdr", "imp", "importlib", "inspect", "io", "ipaddress", "itertools",
    "json", "keyword", "lib2to3", "linecache", "locale", "logging", "lzma", "mailbox", "mailcap",
    "marshal", "math", "mimetypes", "mmap", "modulefinder", "msilib", "msvcrt", "multiprocessing",
    "netrc", "nis", "nntplib", "nt", "ntpath", "nturl2path", "numbers", "opcode", "operator",
    "optparse", "os", "ossaudiodev", "pathlib", "pdb", "pickle", "pickletools", "pipes", "pkgutil",
    "platform", "plistlib", "poplib", "posix", "posixpath", "pprint", "profile", "pstats", "pty",
    "pwd", "py_compile", "pyclbr", "pydoc", "pydoc_data", "pyexpat", "queue", "quopri", "random",
    "re", "readline", "reprlib", "resource", "rlcompleter", "runpy", "sched", "secrets", "select",
    "selectors", "shelve", "shlex", "shutil", "signal", "site", "smtpd", "smtplib", "sndhdr",
    "socket", "socketserver", "spwd", "sqlite3", "sre_compile", "sre_constants", "sre_parse", "ssl",
    "stat", "statistics", "string", "stringprep", "struct", "subprocess", "sunau", "symtable",
    "sys", "sysconfig", "syslog", "tabnanny", "tarfile", "telnetlib", "tempfile", "termios",
    "textwrap", "this", "threading", "time", "timeit", "tkinter", "token", "tokenize", "tomllib",
    "trace", "traceback", "tracemalloc", "tty", "turtle", "turtledemo", "types", "typing",
    "unicodedata", "unittest", "urllib", "uu", "uuid", "venv", "warnings", "wave", "weakref",
    "webbrowser", "winreg", "winsound", "wsgiref", "xdrlib", "xml", "xmlrpc", "zipapp", "zipfile",
    "zipimport", "zlib", "zoneinfo",
];

/// Packages that kernels and their hosts import.
#[rustfmt::skip]
const PACKAGES: [&str; 32] = [
    "cutlass", "einops", "flax", "helion", "huggingface_hub", "jax", "jaxlib", "kernels", "libtpu",
    "ml_dtypes", "nki", "numpy", "onnx", "opt_einsum", "packaging", "pip", "pkg_resources",
    "safetensors", "scipy", "setuptools", "sitecustomize", "test", "tests", "tokenizers", "torch",
    "torch_tpu", "torch_xla", "transformers", "triton", "tvm_ffi", "typing_extensions",
    "usercustomize",
];

/// Checks an id before a kernel is loaded under it.
///
/// ```
/// use kernel_spec::metadata::check_module_id;
///
/// assert!(check_module_id("_relu_tpu_tpu_0a1b2c3").is_ok());
/// assert!(check_module_id("json").is_err());
/// ```
pub fn check_module_id(id: &str) -> Result<()> {
    let refuse = |reason| {
        Err(Error::ModuleId {
            id: id.escape_debug().to_string(),
            reason,
        })
    };
    if id.is_empty() {
        return refuse("it is empty");
    }
    if id.len() > LONGEST {
        return refuse("it is longer than 200 characters");
    }
    let identifier = id
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !id.as_bytes()[0].is_ascii_digit();
    if !identifier {
        return refuse("it is not made of letters, digits and underscores only");
    }
    if KEYWORDS.contains(&id) {
        return refuse("it is a reserved word of Python");
    }
    if id.starts_with("__") {
        return refuse("names that start with two underscores belong to Python");
    }
    if STANDARD_LIBRARY.contains(&id) || is_private_standard(id) {
        return refuse("it is a module of Python's standard library");
    }
    if PACKAGES.contains(&id) {
        return refuse("it is the name of a package that kernels import");
    }
    Ok(())
}

/// Modules such as `_socket` and `_json`: an underscore and the name of a public module, or one of
/// the few that have no public twin.
fn is_private_standard(id: &str) -> bool {
    #[rustfmt::skip]
    const WITHOUT_TWIN: [&str; 40] = [
        "_aix_support", "_blake2", "_bootsubprocess", "_codecs_cn", "_codecs_hk", "_codecs_iso2022",
        "_codecs_jp", "_codecs_kr", "_codecs_tw", "_collections_abc", "_compat_pickle",
        "_curses_panel", "_elementtree", "_frozen_importlib", "_frozen_importlib_external", "_gdbm",
        "_lsprof", "_markupbase", "_md5", "_msi", "_multibytecodec", "_osx_support", "_overlapped",
        "_posixshmem", "_posixsubprocess", "_py_abc", "_pydecimal", "_pyio", "_scproxy", "_sha1",
        "_sha256", "_sha3", "_sha512", "_sitebuiltins", "_sre", "_strptime", "_thread",
        "_threading_local", "_weakrefset", "_winapi",
    ];
    id.strip_prefix('_')
        .is_some_and(|rest| STANDARD_LIBRARY.contains(&rest))
        || WITHOUT_TWIN.contains(&id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_kernel_builder_are_accepted() {
        for id in [
            "_relu_tpu_tpu_0a1b2c3",
            "_flash_attn2_cuda_7a4e5a7_dirty",
            "activation",
            "A1",
        ] {
            assert_eq!(check_module_id(id), Ok(()), "{id}");
        }
    }

    #[test]
    fn peer_fault_17_ids_that_shadow_modules_are_refused() {
        for id in [
            "json", "os", "torch", "_json", "_socket", "_thread", "__main__", "kernels",
        ] {
            assert!(check_module_id(id).is_err(), "{id}");
        }
    }

    #[test]
    fn ids_that_are_no_identifiers_are_refused() {
        for id in [
            "", "os.path", "../x", "1a", "a-b", "a b", "class", "ä", "a\n",
        ] {
            assert!(check_module_id(id).is_err(), "{id}");
        }
        assert!(check_module_id(&"a".repeat(201)).is_err());
    }
}
