"""Settings from the environment, and time limits for the services.

The configuration of Kafka's clients is in `kafka/client_configs.py`. Names include their units.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from topicproof.backend.address import Address, require_no_secret
from topicproof.backend.clusters import DEFAULT_FILE, NamedCluster, cluster_named, read_clusters
from topicproof.backend.errors import SetupError, UsageError
from topicproof.backend.interpreter import CHECKOUT, ROOT as ROOT
from topicproof.backend.properties.facts import facts_of
from topicproof.backend.properties.properties_file import Properties, read_properties
from topicproof.backend.properties.registry_properties import RegistryFacts, take_registry
from topicproof.backend.properties.spelling import for_librdkafka, tls_context
from topicproof.backend.properties.spring import in_kafkas_words
from topicproof.backend.yaml_fields import why_refused
from topicproof.validators.shell_words import shell_word


def _user_folder(variable: str, otherwise: str) -> Path:
    """Return this user's folder for our files of one kind, by the XDG Base Directory Specification:
    a relative path in the variable is ignored."""
    base = Path(os.environ.get(variable, ""))
    return (base if base.is_absolute() else Path(otherwise)) / "topicproof"


CACHE = _user_folder("XDG_CACHE_HOME", "~/.cache")

BROKER_START_TIMEOUT_S = 180
SPARK_START_TIMEOUT_S = 240
STOP_TIMEOUT_S = 20
DISK_FREE_BYTES_MIN = 500_000_000
DASHBOARD_PORT = 8501
JAVA_VERSION_MIN = 17


def _storage_url(url: str | None) -> str | None:
    """Return the URL of a storage without a slash at its end. Raises ValueError."""
    if url is None or "://" in url or url.startswith("file:/"):
        return url and require_no_secret(url).rstrip("/")
    raise ValueError("it is not the URL of a folder, such as s3a://bucket/folder")


def _whole(path: Path) -> Path:
    """Return the absolute path. Raises ValueError if the user or the working folder in it does not
    exist."""
    try:
        return path.expanduser().absolute()
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{path} is not a path here ({error})") from error


WholePath = Annotated[Path, AfterValidator(_whole)]


class Settings(BaseSettings):
    """Read once. An argument overrides its variable (TOPICPROOF_HOME for `home`), and a variable
    overrides the properties file. An empty variable counts as unset."""

    model_config = SettingsConfigDict(
        env_prefix="TOPICPROOF_",
        env_ignore_empty=True,
        frozen=True,
        populate_by_name=True,
        validate_default=True,
    )

    home: WholePath = Field(default_factory=lambda: _user_folder("XDG_DATA_HOME", "~/.local/share"))
    """Folder of all data: history, runs, evidence, logs, the embedded broker's files. It is the
    user's, never the working folder's: its keys are trusted."""
    jars: WholePath = ROOT / ".jars" if CHECKOUT else CACHE / "jars"
    """Folder of the jars of ivy.xml, with one subfolder for each configuration."""
    bootstrap: Annotated[str, AfterValidator(require_no_secret)] | None = None
    """host:port list of an external Kafka; None means the embedded one."""
    spark_remote: str | None = Field(default=None, validation_alias="SPARK_REMOTE", repr=False)
    """sc:// address of an external Spark Connect server; None means the embedded one."""
    spark_token_file: WholePath | None = None
    """A file with the token that this server asks for, which only its owner can read."""
    storage: Annotated[str | None, AfterValidator(_storage_url)] = None
    """URL of a folder that this process and the external Spark both reach (storage.py); None: they
    share this machine's disk."""
    brokers: int = 1
    """Brokers of the embedded cluster: 1 or 3."""
    config: WholePath | None = None
    """A Java-style properties file with client properties for the external Kafka."""
    client: Annotated[Mapping[str, str], NoDecode] = Field(default={}, repr=False)
    """What that file says of TLS and SASL, as `properties/spelling.py` has it for librdkafka. Never
    printed."""
    schema_registry: str | None = Field(default=None, repr=False)
    """http(s) address of the schema registry; it overrides the file's `schema.registry.url`."""
    registry: Annotated[RegistryFacts | None, NoDecode] = None
    """How to reach that registry: the address, and what the file says of it."""
    avro_schemas: str | None = None
    """`topic=file.avsc`, several separated by commas: the schemas of values that are Avro without a
    registry."""
    clusters: WholePath | None = None
    """A YAML file of named clusters (`backend/clusters.py`); None: `clusters.yaml` in the home, if
    it is there."""
    cluster: str | None = None
    """The chosen one of them. Its address, properties and registry override the variables."""
    database: str | None = Field(default=None, repr=False)
    """SQLAlchemy URL of the history database; None means a SQLite file in the home."""
    tables: str | None = None
    """Places of tables that contracts may name, separated by commas: folders, URLs of buckets, and
    `jdbc:postgresql://host:port/database`. None: any, unless somebody has signed in."""
    signing_key: WholePath | None = None
    """A private key in a PEM file, to sign evidence and sign-offs; None means the key that is made
    in the home at its first use."""
    signing_uri: str | None = None
    """A key in a device or a key service, as securesystemslib names it (trust/key_service.py). It
    overrides `signing_key`."""
    signing_public_key: WholePath | None = None
    """The public key of `signing_uri`, in a PEM file."""
    signing_pin_file: WholePath | None = None
    """A file with the PIN of the device, which only its owner can read."""
    trusted_keys: WholePath | None = None
    """A further folder of trusted public keys, which may be shared (trust/keyring.py)."""
    signer: str | None = None
    """Who signs, in the words of this installation; None means user@machine."""
    require_signature: bool = False
    """Whether `verify` refuses evidence for which no trusted key vouches."""
    dashboard_address: str = "127.0.0.1"
    """In a container this must cover all interfaces, or the port cannot be published. Then
    `insecure` is needed too."""
    dashboard_hosts: str | None = None
    """Further names by which browsers may open the dashboard, separated by commas."""
    insecure: bool = False
    """Whether a dashboard without a login may listen beyond loopback."""
    login: WholePath | None = None
    """A YAML file with the login of the dashboard and the command line (trust/login.py); None: no
    login."""
    four_eyes: bool = False
    """Whether a verdict is accepted only by somebody who neither launched it nor waived its
    findings."""

    @model_validator(mode="before")
    @classmethod
    def _read_config(cls, fields: dict[str, Any]) -> dict[str, Any]:
        config = fields.get("config")
        try:
            client = read_properties(_whole(Path(config))) if config else Properties({}, {})
            client = in_kafkas_words(client)
        except ValueError as error:
            raise UsageError(f"The setting TOPICPROOF_CONFIG is wrong: {error}.") from error
        named = [client.pop(name, None) for name in ("bootstrap.servers", "metadata.broker.list")]
        registry = take_registry(client, fields.get("schema_registry"))
        from_config = {"client": _usable(client), "registry": registry}
        return {"bootstrap": named[0] or named[1], **fields, **from_config}

    @property
    def cluster_options(self) -> str:
        """The options, each after a space, with which a command asks the same cluster. Empty for
        the embedded one."""
        if self.cluster is not None:
            return f" --cluster {shell_word(self.cluster)}"
        if self.bootstrap is None:
            return ""
        config = "" if self.config is None else f" --config {shell_word(str(self.config))}"
        return f" --bootstrap {shell_word(self.bootstrap)}{config}"

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.home / 'history.db'}"

    @property
    def avro_files(self) -> dict[str, Path]:
        """The schema file of each topic in `avro_schemas`. Raises UsageError."""
        files = {}
        for entry in filter(None, map(str.strip, (self.avro_schemas or "").split(","))):
            topic, equals, path = entry.partition("=")
            if not (equals and topic and path):
                raise UsageError(
                    f"The setting TOPICPROOF_AVRO_SCHEMAS is wrong: {entry} is not topic=file.avsc."
                )
            try:
                files[topic.strip()] = _whole(Path(path.strip()))
            except ValueError as error:
                raise UsageError(
                    f"The setting TOPICPROOF_AVRO_SCHEMAS is wrong: {error}."
                ) from error
        return files

    @property
    def clusters_file(self) -> Path:
        """The file of named clusters. It may be missing, unless `clusters` names it."""
        return self.clusters or self.home / DEFAULT_FILE

    @property
    def named_clusters(self) -> dict[str, NamedCluster]:
        """The named clusters, in the order of their file. Raises UsageError."""
        path = self.clusters_file
        return read_clusters(path) if self.clusters or path.exists() else {}

    @property
    def address(self) -> Address:
        """The external Kafka. Raises UsageError if there is none."""
        if self.bootstrap is None:
            raise UsageError("No Kafka is given. Name one with --bootstrap or --cluster.")
        return Address(self.bootstrap, self.client, self.cluster or "")

    @property
    def runs(self) -> Path:
        return self.home / "runs"

    @property
    def services(self) -> Path:
        """Folder of the embedded services: data, logs, and the list of running processes."""
        return self.home / "services"

    @property
    def spark(self) -> Path:
        """Folder of the embedded Spark server."""
        return self.services / "spark"

    def environment(self) -> dict[str, str]:
        """Return the environment variables that give a child process these same settings."""
        return {
            "SPARK_REMOTE" if name == "spark_remote" else f"TOPICPROOF_{name.upper()}": str(value)
            for name, value in self
            if name not in ("client", "registry") and value is not None
        }


def _usable(client: Properties) -> dict[str, str]:
    """Return the properties as each process of ours takes them: certificates and keys inline, keys
    without encryption. Raises UsageError for what any of the Kafka clients cannot use."""
    facts = facts_of(client).with_plain_key()
    if facts.has_tls:
        tls_context(facts)
    return for_librdkafka(facts)


def read_settings(
    bootstrap: str | None = None,
    config: Path | None = None,
    brokers: int | None = None,
    home: Path | None = None,
    cluster: str | None = None,
    make_home: bool = True,
) -> Settings:
    """Read the settings from the environment; arguments override variables. Creates the home,
    unless `make_home` is false: whether it could be created is still checked.

    Raises UsageError for an unreadable `config`, an invalid variable, or an unknown `cluster`, and
    for a cluster that is given twice, by name and by address. Raises SetupError if the home cannot
    be created or written.
    """
    if cluster and (bootstrap or config):
        raise UsageError(
            f"Cluster {cluster} has an address and properties of its own. Remove the cluster's"
            " name, or the address and the properties."
        )
    named = {
        "bootstrap": bootstrap,
        "config": config,
        "brokers": brokers,
        "home": home,
        "cluster": cluster,
    }
    arguments: dict[str, Any] = {name: value for name, value in named.items() if value}
    if bootstrap:
        arguments["cluster"] = None  # The argument overrides the variable.
    settings = _settings(arguments)
    if settings.cluster is not None:
        named_cluster = cluster_named(
            settings.named_clusters, settings.cluster, settings.clusters_file
        )
        settings = _settings({**arguments, **asdict(named_cluster)})
    writable(settings.home if make_home else nearest(settings.home))
    if make_home:
        close_to_others(settings.home)
    return settings


def _settings(arguments: dict[str, Any]) -> Settings:
    try:
        return Settings(**arguments)
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(map(str, first["loc"])).upper()
        name = name if name == "SPARK_REMOTE" else f"TOPICPROOF_{name}"
        raise UsageError(f"The setting {name} is wrong: {why_refused(first)}.") from error


def nearest(folder: Path) -> Path:
    """Return `folder` if it exists, else the nearest folder above it that does."""
    return next(place for place in (folder, *folder.parents) if place.exists())


def writable(folder: Path) -> None:
    """Create `folder` and check that it is writable. Raises SetupError naming the remedy."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Two sessions of one process may ask at once, so each has a name of its own.
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe-"):
            pass
    except OSError as error:
        raise SetupError(
            f"The home folder {folder} cannot be written ({error.strerror}). Set TOPICPROOF_HOME to"
            " a folder that you can write to."
        ) from error


def close_to_others(home: Path) -> None:
    """Take from other users every right to a home. One that belongs to another user, such as a
    volume of a container, stays as it is; files in it are closed by `close_files`.

    Raises SetupError if the home is a folder that others need.
    """
    status, whole = home.stat(), home.resolve()
    if status.st_mode & stat.S_ISVTX or whole in (Path(whole.anchor), _whole(Path("~"))):
        raise SetupError(
            f"The home {home} would be closed to other users and programs, which need it. Set"
            " TOPICPROOF_HOME to a folder of its own."
        )
    if status.st_uid == os.getuid() and status.st_mode & 0o077:
        home.chmod(stat.S_IMODE(status.st_mode) & ~0o077)


def close_files() -> None:
    """Let this process and its children write files and folders that only their owner can read.
    Every program of ours calls this first: records have to stay with whoever may read them."""
    os.umask(0o077)


def socket_path(folder: Path) -> Path:
    """Return the path of a Unix socket for `folder`, in a directory of this user alone. It is
    short: the kernel allows about 100 characters. Raises SetupError if the directory belongs to
    another user."""
    return temporary_folder() / f"{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}.sock"


def temporary_folder() -> Path:
    """Return a folder of this user alone among temporary files. Raises SetupError if it belongs to
    another user."""
    place = Path(tempfile.gettempdir()) / f"topicproof-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    # A link is not followed: another user may have made it first.
    status = place.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
        raise SetupError(f"{place} belongs to another user. Set TMPDIR to a folder of your own.")
    place.chmod(0o700)
    return place
