package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

const mastersGroup = "system:masters" // the group that kube-apiserver allows everything, without authorization

// staticTokens is kube-apiserver's token file, with a user of each kind that tests need. alice and
// bob may do nothing until a test binds a role to them.
const staticTokens = `admin-token,admin,uid-admin,system:masters
alice-token,alice,uid-alice,"dev,ops"
bob-token,bob,uid-bob
`

// StaticToken returns the bearer token of admin (in system:masters), alice (in dev and ops) or bob (in no group).
func (c *Cluster) StaticToken(user string) Credentials { return Credentials{Token: user + "-token"} }

// AddAPIServer starts another kube-apiserver, which reaches etcd at that URL. more are appended to
// its arguments, and may have another address and port.
func (c *Cluster) AddAPIServer(ctx context.Context, etcd string, more ...string) error {
	return c.startAPIServer(ctx, len(c.APIServers), etcd, more...)
}

func (c *Cluster) startAPIServer(ctx context.Context, i int, etcd string, more ...string) (err error) {
	defer try.Catch(&err)
	more = slices.Concat(c.cfg.APIServerArgs, more)
	path, host := try.Get(c.cfg.tool(ctx, "kube-apiserver")), lastOf(more, "--bind-address=", c.cfg.Loopback)
	port := lastOf(more, "--secure-port=", strconv.Itoa(try.Get(c.cfg.FreePorts(1))[0]))
	name := numbered("kube-apiserver", i)
	serving := try.Get(c.PKI.Serving.Issue(name, Leaf{User: name, Names: []string{
		host, name, try.Get(os.Hostname()), "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.96.0.1", "fd00:96::1",
	}}))
	tokens := filepath.Join(c.PKI.Dir, "tokens.csv")
	try.Do(os.WriteFile(tokens, []byte(staticTokens), 0o600))
	kubelet := try.Get(c.PKI.Client.Issue("kube-apiserver-kubelet-client", Leaf{User: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}}))
	args := []string{
		"--etcd-servers=" + etcd,
		"--bind-address=" + host,
		"--secure-port=" + port,
		// Kubernetes refuses loopback addresses in the endpoints of its own Service, and no test uses that Service.
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.96.0.0/16",
		"--tls-cert-file=" + serving.CertFile,
		"--tls-private-key-file=" + serving.KeyFile,
		"--client-ca-file=" + c.PKI.Client.CertFile,
		"--token-auth-file=" + tokens,
		"--authorization-mode=Node,RBAC",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.PKI.ServiceAccounts.CertFile,
		"--service-account-signing-key-file=" + c.PKI.ServiceAccounts.KeyFile,
		"--proxy-client-cert-file=" + c.PKI.FrontProxyPair.CertFile,
		"--proxy-client-key-file=" + c.PKI.FrontProxyPair.KeyFile,
		"--kubelet-certificate-authority=" + c.PKI.Serving.CertFile,
		"--kubelet-client-certificate=" + kubelet.CertFile,
		"--kubelet-client-key=" + kubelet.KeyFile,
		"--kubelet-preferred-address-types=InternalIP",
		"--enable-aggregator-routing=false", // it dials cluster addresses and external names; only external names lead to loopback
	}
	if i < c.cfg.APIServers-c.cfg.Clouds || i >= c.cfg.APIServers {
		args = append(args,
			"--requestheader-client-ca-file="+c.PKI.FrontProxy.CertFile,
			"--requestheader-allowed-names=front-proxy-client",
			"--requestheader-username-headers=X-Remote-User",
			"--requestheader-group-headers=X-Remote-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		)
		if c.cfg.UIDHeaders {
			args = append(args, "--requestheader-uid-headers=X-Remote-Uid")
		}
		args = append(args, c.cfg.BelieverArgs...)
	}
	if c.cfg.Audit {
		policy := filepath.Join(c.dir, "audit-policy.yaml")
		try.Do(os.WriteFile(policy, []byte(auditPolicy), 0o600))
		args = append(args, "--audit-policy-file="+policy, "--audit-log-path="+filepath.Join(c.dir, name+".audit"))
	}
	c.urls = append(c.urls, "https://"+net.JoinHostPort(host, port))
	args = append(args, more...)
	// A host's name of its own: kube-apiservers of one name have one identity, and are no peers. Not even root of every
	// container may have one.
	if i > 0 && exec.CommandContext(ctx, "unshare", "--uts", "true").Run() == nil {
		path, args = "unshare", append([]string{"--uts", "sh", "-c", `echo "$0" >/proc/sys/kernel/hostname && exec "$@"`, name, path}, args...)
	}
	node := ""
	if i < len(c.cfg.Nodes) {
		node = c.cfg.Nodes[i]
	}
	part, err := c.Run(ctx, Command{Name: name, Path: path, Args: args, Netns: node, Ready: c.EndpointOf(i).Serves("/readyz", c.Admin())})
	c.APIServers = append(c.APIServers, part)
	return err
}

// auditPolicy is for who asked for what.
const auditPolicy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"

// Audited returns what the first kube-apiserver has recorded so far (Config.Audit).
func (c *Cluster) Audited() (all []auditv1.Event, err error) {
	data, err := os.ReadFile(filepath.Join(c.dir, "kube-apiserver.audit"))
	for line := range strings.Lines(string(data)) {
		e := auditv1.Event{ObjectRef: &auditv1.ObjectReference{}, ResponseStatus: &metav1.Status{}}
		if json.Unmarshal([]byte(line), &e) == nil { // the last line may be incomplete
			all = append(all, e)
		}
	}
	return all, err
}

// lastOf returns the value of the last such flag.
func lastOf(args []string, flag, otherwise string) string {
	for _, a := range args {
		if v, ok := strings.CutPrefix(a, flag); ok {
			otherwise = v
		}
	}
	return otherwise
}

// bindAdmin binds Config.AdminGroup to cluster-admin, and waits until each kube-apiserver knows.
func (c *Cluster) bindAdmin(ctx context.Context) (err error) {
	defer try.Catch(&err)
	master := try.Get(c.PKI.Client.Issue("master", Leaf{User: "master", Groups: []string{mastersGroup}}))
	core := try.Get(kubernetes.NewForConfig(c.Endpoint().RESTConfig(Credentials{Pair: master})))
	try.Get(core.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: c.cfg.AdminGroup},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: c.cfg.AdminGroup}},
	}, metav1.CreateOptions{}))
	for i := range c.urls {
		try.Do(eventually(ctx, c.EndpointOf(i).Serves("/api/v1/namespaces", c.Admin()), nil))
	}
	return nil
}

// StartControllerManager starts kube-controller-manager as a client of through, with the controllers that a cluster
// without nodes needs: namespaces end, owned objects are collected, ServiceAccounts and their CA bundles exist. more
// are appended to its arguments: controllers add up, other flags override.
func (c *Cluster) StartControllerManager(ctx context.Context, through Endpoint, more ...string) (p *Part, err error) {
	defer try.Catch(&err)
	path, port := try.Get(c.cfg.tool(ctx, "kube-controller-manager")), try.Get(c.cfg.FreePorts(1))[0]
	kubeconfig := try.Get(c.Kubeconfig(through, "kube-controller-manager", Leaf{User: "system:kube-controller-manager"}))
	const controllers = "namespace-controller,garbage-collector-controller,serviceaccount-controller,serviceaccount-token-controller," +
		"root-ca-certificate-publisher-controller,resourcequota-controller,clusterrole-aggregation-controller," +
		"deployment-controller,replicaset-controller"
	return c.Run(ctx, Command{
		Name: "kube-controller-manager", Path: path,
		Args: append([]string{
			"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
			"--bind-address=" + c.cfg.Loopback, fmt.Sprintf("--secure-port=%d", port),
			"--leader-elect=false",
			"--use-service-account-credentials", // as kubeadm: each controller uses a ServiceAccount token, which exercises tokens
			"--service-account-private-key-file=" + c.PKI.ServiceAccounts.KeyFile,
			"--root-ca-file=" + c.PKI.Serving.CertFile,
			"--controllers=" + controllers,
		}, more...),
	})
}
