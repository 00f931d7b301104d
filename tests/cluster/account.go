package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

// Account creates Fairlead's ServiceAccount with only the permissions that an overlay of deploy
// grants it, and returns a kubeconfig for e with a token of it. folder is deploy's.
func (c *Cluster) Account(ctx context.Context, e Endpoint, folder, overlay string) (kubeconfig string, err error) {
	defer try.Catch(&err)
	kubectl := try.Get(c.cfg.tool(ctx, "kubectl"))
	out, err := exec.CommandContext(ctx, kubectl, "kustomize", filepath.Join(folder, "overlays", overlay)).Output()
	if err != nil {
		return "", fmt.Errorf("rendering overlay %s: %w", overlay, err)
	}
	var grants bytes.Buffer
	for document := range strings.SplitSeq("\n"+string(out), "\n---\n") {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			return "", fmt.Errorf("reading overlay %s: %w", overlay, err)
		}
		if o.GetKind() == "ServiceAccount" || o.GroupVersionKind().Group == "rbac.authorization.k8s.io" {
			fmt.Fprintf(&grants, "---\n%s\n", document)
		}
	}
	admin := filepath.Join(c.dir, "account-admin.kubeconfig")
	try.Do(c.Endpoint().WriteKubeconfig(admin, c.Admin()))
	apply := exec.CommandContext(ctx, kubectl, "--kubeconfig", admin, "apply", "-f", "-")
	apply.Stdin = &grants
	if out, err := apply.CombinedOutput(); err != nil {
		return "", fmt.Errorf("applying overlay %s: %w\n%s", overlay, err, out)
	}
	core := try.Get(kubernetes.NewForConfig(c.Endpoint().RESTConfig(c.Admin())))
	day := int64(24 * 60 * 60) // longer than any run
	r, err := core.CoreV1().ServiceAccounts("kube-system").CreateToken(ctx, "fairlead", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &day}}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("asking for a token: %w", err)
	}
	kubeconfig = filepath.Join(c.dir, "account.kubeconfig")
	return kubeconfig, e.WriteKubeconfig(kubeconfig, Credentials{Token: r.Status.Token})
}
