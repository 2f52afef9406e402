//! Scopes: what a client may see and touch.

use crate::error::Refusal;
use crate::new_job::NewJob;

/// Whose jobs a client may see and touch, see [`Client::scoped`](crate::Client::scoped).
///
/// A missing tenant or organization is a value of its own: it stands for jobs without one.
///
/// ```
/// use leasehold::Scope;
///
/// let acme = Scope::tenant("acme");
/// let sales = Scope::tenant("acme").organization("sales");
/// assert_ne!(acme, sales);
/// ```
///
/// Specified in SEMANTICS.md, “Scopes”.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    pub(crate) tenant: Option<String>,
    pub(crate) organization: Option<String>,
}

impl Scope {
    /// Jobs with neither tenant nor organization.
    #[must_use]
    pub fn of_nobody() -> Self {
        Self::default()
    }

    /// Jobs of a tenant, without an organization.
    #[must_use]
    pub fn tenant(tenant: impl Into<String>) -> Self {
        Self { tenant: Some(tenant.into()), organization: None }
    }

    /// Jobs of an organization, below the tenant.
    #[must_use]
    pub fn organization(mut self, organization: impl Into<String>) -> Self {
        self.organization = Some(organization.into());
        self
    }

    /// A new job as it is enqueued within the scope.
    pub(crate) fn put_on(&self, job: &NewJob) -> Result<NewJob, Refusal> {
        for (field, given, own) in [
            ("tenant", &job.tenant, &self.tenant),
            ("organization", &job.organization, &self.organization),
        ] {
            if let Some(given) = given.as_ref().filter(|_| given != own) {
                return Err(Refusal::invalid(field, given, "the client's own, or left out"));
            }
        }
        let (tenant, organization) = (self.tenant.clone(), self.organization.clone());
        Ok(NewJob { tenant, organization, ..job.clone() })
    }
}
