package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/retry"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
)

// The ConfigMap in which kube-apiserver tells extension servers whom to trust, and its keys for front proxies.
const (
	authenticationMap = "extension-apiserver-authentication"
	bundleKey         = "requestheader-client-ca-file"
	namesKey          = "requestheader-allowed-names"
)

// appender adds Fairlead's CA and name to the ConfigMap from which extension servers without flags take the front
// proxies that they trust. kube-apiserver only ever adds to it (docs/decisions/0043 says what loses an entry).
type appender struct{ wanted, remove, dryRun bool }

func (a *appender) addFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.wanted, "append-authentication-configmap", false, "Then make all extension servers trust "+
		"Fairlead's certificate: append its CA and name to ConfigMap kube-system/extension-apiserver-authentication.")
	cmd.Flags().BoolVar(&a.remove, "remove", false,
		"With --append-authentication-configmap: remove what it has appended, also earlier CAs of Fairlead.")
	cmd.Flags().BoolVar(&a.dryRun, "dry-run", false, "With --append-authentication-configmap: only say the changes.")
	cmd.PreRunE = func(*cobra.Command, []string) (err error) { // before init makes Secrets
		layout, reads := cmd.Flags().Changed("layout"), []string{"out", "deploy", "components", "secure-port",
			"admin-secure-port", "local-apiservers-from", "etcd-servers", "yes"}
		if a.wanted && layout || !a.wanted && (a.remove || a.dryRun) {
			err = errors.New("--remove and --dry-run need --append-authentication-configmap, which --layout excludes")
		} else if n := slices.IndexFunc(reads, cmd.Flags().Changed); n >= 0 && !layout {
			err = errors.New("--" + reads[n] + " needs --layout") // who gives it wants no Secrets
		}
		return cli.Usage(err)
	}
}

// run changes the ConfigMap unless another writer does so meanwhile; then it reads it again.
func (a *appender) run(ctx context.Context, core corev1client.CoreV1Interface, namespace string, out io.Writer) error {
	secret, err := core.Secrets(namespace).Get(ctx, "fairlead-front-proxy-client", metav1.GetOptions{})
	if err != nil {
		return err // it names the Secret
	}
	ca, err1 := certutil.ParseCertsPEM(secret.Data[corev1.ServiceAccountRootCAKey])
	leaf, err2 := certutil.ParseCertsPEM(secret.Data[corev1.TLSCertKey])
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("reading ca.crt and tls.crt of Secret fairlead-front-proxy-client: %w", err)
	}
	maps := core.ConfigMaps(metav1.NamespaceSystem)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		found, err := maps.Get(ctx, authenticationMap, metav1.GetOptions{})
		if err != nil {
			return err // it names the ConfigMap
		}
		changes, err := a.change(found.Data, ca[0], leaf[0].Subject.CommonName)
		if err != nil {
			return fmt.Errorf("reading ConfigMap %s: %w", found.Name, err)
		}
		done := "written"
		switch {
		case len(changes) == 0:
			done = "unchanged"
		case a.dryRun:
			done = "not written (--dry-run)"
		default:
			if _, err := maps.Update(ctx, found, metav1.UpdateOptions{FieldManager: "kubectl-fairlead"}); err != nil {
				return err
			}
		}
		_, err = fmt.Fprintf(out, "configmap/%s %s%s\n", found.Name, done,
			strings.Join(append([]string{""}, changes...), "\n  "))
		return err
	})
}

func (a *appender) change(data map[string]string, ca *x509.Certificate, name string) (changes []string, err error) {
	if data[bundleKey] == "" {
		return nil, errors.New("it has no request-header CA: this kube-apiserver runs without --requestheader flags, " +
			"so extension servers take no front proxy from it")
	}
	bundle, err := certutil.ParseCertsPEM([]byte(data[bundleKey]))
	if err != nil {
		return nil, fmt.Errorf("parsing %s: %w", bundleKey, err)
	}
	var names []string
	if err := json.Unmarshal([]byte(data[namesKey]), &names); data[namesKey] != "" && err != nil {
		return nil, fmt.Errorf("parsing %s: %w", namesKey, err)
	}
	before := len(names)
	if a.remove {
		bundle = slices.DeleteFunc(bundle, func(c *x509.Certificate) bool {
			ours := c.Equal(ca) || strings.HasPrefix(c.Subject.CommonName, "fairlead-ca") // init's and cert-manager's
			if ours {
				changes = append(changes, fmt.Sprintf("CA %q removed", c.Subject.CommonName))
			}
			return ours
		})
		names = slices.DeleteFunc(names, func(n string) bool { return n == name })
		if before > 0 && len(names) == 0 || len(bundle) == 0 { // no name would mean any name
			return nil, fmt.Errorf("nothing but Fairlead's would be left: %q", name)
		}
	} else {
		if !slices.ContainsFunc(bundle, ca.Equal) {
			changes, bundle = append(changes, fmt.Sprintf("CA %q appended", ca.Subject.CommonName)), append(bundle, ca)
		}
		if before > 0 && !slices.Contains(names, name) { // without any, all names are allowed
			names = append(names, name)
		}
	}
	if len(names) != before {
		changes = append(changes, fmt.Sprintf("allowed names %q", names))
		text, _ := json.Marshal(names) // strings, which it encodes always
		data[namesKey] = string(text)
	}
	text, err := certutil.EncodeCertificates(bundle...)
	data[bundleKey] = string(text)
	return changes, err
}

// authentication reads the cluster's authentication ConfigMap. It returns false if the cluster cannot be reached.
func (l *linter) authentication(ctx context.Context, client corev1client.CoreV1Interface) (map[string][]byte, bool) {
	cm, err := client.ConfigMaps(metav1.NamespaceSystem).Get(ctx, authenticationMap, metav1.GetOptions{})
	if network := net.Error(nil); errors.As(err, &network) {
		l.Error("local apiserver", doFor(err, grant), "it cannot be reached: %v", err)
		return nil, false
	}
	if err != nil {
		l.Warn("ConfigMap "+metav1.NamespaceSystem+"/"+authenticationMap,
			doFor(err, "bind the Role extension-apiserver-authentication-reader"), "reading: %v", err)
		return nil, true
	}
	authentication := make(map[string][]byte, len(cm.Data))
	for k, v := range cm.Data {
		authentication[k] = []byte(v)
	}
	return authentication, true
}

func (l *linter) proxyClient(authentication map[string][]byte) {
	if l.Certs.ProxyClient.Cert == "" {
		if authentication != nil && !l.impersonates() {
			l.CheckProxyClient(nil, authentication)
			const name = "front-proxy-client" // of the manifests; a Fairlead that runs may have another certificate
			var names []string
			_ = json.Unmarshal(authentication[namesKey], &names)                                // certs reports faults
			if len(l.survey.replicas) == 0 && len(names) > 0 && !slices.Contains(names, name) { // none means any name
				l.Add(certs.SeverityToDo, "front proxies",
					"set --requestheader-allowed-names to the name of your certificate",
					"the cluster knows them by the names %q, and the manifests name %q", names, name)
			}
		}
		l.Warn("proxy client certificate", "give --proxy-client-cert-file and --proxy-client-key-file, as for serve",
			"it was not checked, because it was not given")
		return
	}
	if l.impersonates() {
		authentication = nil // the cluster never sees it; each extension server is checked separately
	}
	if chain := l.pair("proxy client certificate", l.Certs.ProxyClient); chain != nil {
		l.CheckProxyClient(chain, authentication)
		if l.impersonates() {
			l.Findings = l.Findings[:len(l.Findings)-1] // without the finding that it was not compared
		}
	}
}
