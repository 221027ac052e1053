//! A connection to a store: to one server, to a cluster, or to the master that sentinels name.

use std::{fmt, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, Pipeline,
    RedisConnectionInfo, RedisFuture, RedisResult, ServerErrorKind, TlsMode, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster::ClusterClientBuilder,
    cluster_async::ClusterConnection,
    cmd,
    io::tcp::TcpSettings,
    sentinel::{SentinelClientBuilder, SentinelServerType},
};

pub(crate) use super::address::Address;
use super::address::{Host, Kind, Login};
use crate::clock;

/// A connection; clones share it. It does not come back by itself: whoever uses it connects again.
#[derive(Clone)]
pub(crate) enum Link {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// A cluster's redirects and looks at its map within one command; beyond that the caller asks again.
const CLUSTER_RETRIES: u32 = 4;
/// Between them, in milliseconds.
const CLUSTER_WAITS: (u64, u64) = (5, 100);

impl Address {
    /// Connects, within `timeout`. `response` bounds every command; `None`: whoever sends bounds it.
    pub(crate) async fn connect(&self, timeout: Duration, response: Option<Duration>) -> RedisResult<Link> {
        if self.tls && !has_provider() {
            let what = "TLS needs a crypto provider of rustls: install one, or use the feature `rustls`";
            return Err((ErrorKind::InvalidClientConfig, what).into());
        }
        let until = clock::now().checked_add(timeout);
        let late = || Err((ErrorKind::Io, "no answer in time").into());
        clock::before(until, self.link(timeout, response)).await.unwrap_or_else(late)
    }

    async fn link(&self, timeout: Duration, response: Option<Duration>) -> RedisResult<Link> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(timeout)).set_response_timeout(response);
        match &self.kind {
            Kind::One => {
                let infos: Vec<ConnectionInfo> = self.infos()?;
                let first = infos.into_iter().next().ok_or((ErrorKind::InvalidClientConfig, "no host"))?;
                let connection = Client::open(first)?.get_multiplexed_async_connection_with_config(&config).await?;
                selected(connection, self.database).await
            }
            Kind::Cluster => {
                let builder = ClusterClientBuilder::new(self.infos()?)
                    .connection_timeout(timeout)
                    .response_timeout(response.unwrap_or(FOR_EVER))
                    .overall_response_timeout(response)
                    .retries(CLUSTER_RETRIES)
                    .min_retry_wait(CLUSTER_WAITS.0)
                    .max_retry_wait(CLUSTER_WAITS.1)
                    .tcp_settings(tcp());
                builder.build()?.get_async_connection().await.map(Link::Cluster)
            }
            Kind::Sentinel(master) => match self.master(master, &config, false).await {
                // Sentinels have a login of their own, or none; this one is the store's, and may be theirs too.
                Err(error) if self.login.is_some() && error.code() == Some("NOAUTH") => {
                    self.master(master, &config, true).await
                }
                link => link,
            },
        }
    }

    async fn master(&self, master: &str, config: &AsyncConnectionConfig, login: bool) -> RedisResult<Link> {
        let sentinels: Vec<ConnectionAddr> = self.hosts.iter().map(|host| host.address(self.tls)).collect();
        let mut builder = SentinelClientBuilder::new(sentinels, master, SentinelServerType::Master)?
            .set_client_to_redis_tcp_settings(tcp())
            .set_client_to_sentinel_tcp_settings(tcp());
        if self.tls {
            builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        }
        if let Some(Login { user, password }) = &self.login {
            builder = builder.set_client_to_redis_password(password);
            if let Some(user) = user {
                builder = builder.set_client_to_redis_username(user);
            }
            if login {
                builder = builder.set_client_to_sentinel_password(password);
            }
            if let Some(user) = user.as_ref().filter(|_| login) {
                builder = builder.set_client_to_sentinel_username(user);
            }
        }
        let connection = builder.build()?.get_async_connection_with_config(config).await?;
        selected(connection, self.database).await
    }

    fn infos(&self) -> RedisResult<Vec<ConnectionInfo>> {
        let mut settings = RedisConnectionInfo::default();
        if let Some(Login { user, password }) = &self.login {
            settings = settings.set_password(password);
            if let Some(user) = user {
                settings = settings.set_username(user);
            }
        }
        let info = |host: &Host| {
            let info = host.address(self.tls).into_connection_info()?;
            Ok(info.set_redis_settings(settings.clone()).set_tcp_settings(tcp()))
        };
        self.hosts.iter().map(info).collect()
    }
}

/// Chosen here and not by the client: it would not tell why it could not be.
async fn selected(mut connection: MultiplexedConnection, database: i64) -> RedisResult<Link> {
    if database > 0 {
        let answer: RedisResult<()> = cmd("SELECT").arg(database).query_async(&mut connection).await;
        answer.map_err(|error| match error.kind() {
            ErrorKind::Server(ServerErrorKind::ResponseError) => (ErrorKind::InvalidClientConfig, NO_DATABASE).into(),
            _ => error,
        })?;
    }
    Ok(Link::One(connection))
}

const NO_DATABASE: &str = "it has no such database: they are numbered from 0, mostly to 15; a cluster has only 0";

/// Where a timeout must be told and there is none: a day.
const FOR_EVER: Duration = Duration::from_secs(86_400);

fn tcp() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// Whether rustls finds a crypto provider. Where none is installed it takes the one that its crate features name, and
/// panics unless that is exactly one: with the feature `rustls` reqwest's is installed before it looks.
fn has_provider() -> bool {
    if rustls::crypto::CryptoProvider::get_default().is_some() {
        return true;
    }
    #[cfg(feature = "rustls")]
    {
        // Fails if another thread was faster: then there is one.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
    cfg!(feature = "rustls")
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One(_) => "Link::One",
            Self::Cluster(_) => "Link::Cluster",
        })
    }
}

impl ConnectionLike for Link {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::One(connection) => connection.req_packed_command(cmd),
            Self::Cluster(connection) => connection.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::One(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::One(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}
