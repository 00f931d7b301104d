package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const leafLife = 365 * 24 * time.Hour // a leaf is renewed when a third is left, before lint and the alerts warn

// initiator stores a CA and the certificates it signs in Secrets of cert-manager's form.
type initiator struct {
	secrets   corev1client.SecretInterface
	namespace string
	out       io.Writer
	ca        tls.Certificate // empty until it is read or made
}

func initCommand() *cobra.Command {
	flags := genericclioptions.NewConfigFlags(true)
	*flags.Namespace = metav1.NamespaceSystem
	var names []string
	var extensions appender
	w := &installer{}
	cmd := &cobra.Command{
		Use: "init", Short: "Write the manifests of an installation, or make Fairlead's own CA and certificates",
		Long: long("init"),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rc, err := flags.ToRESTConfig()
			if err != nil {
				return fmt.Errorf("reading kubeconfig: %w", err)
			}
			if w.layout != "" {
				w.in, w.print, w.names = cmd.InOrStdin(), cmd.OutOrStdout(), names
				w.cluster = [2]string{*flags.KubeConfig, *flags.Context}
				return w.run(cmd.Context(), rc)
			}
			c, err := corev1client.NewForConfig(rc)
			if err != nil {
				return fmt.Errorf("reading kubeconfig: %w", err)
			}
			i := &initiator{secrets: c.Secrets(*flags.Namespace), namespace: *flags.Namespace, out: cmd.OutOrStdout()}
			if !extensions.wanted || !extensions.remove && !extensions.dryRun { // the others make no certificate
				err = i.run(cmd.Context(), names)
			}
			if extensions.wanted && (err == nil || apierrors.IsConflict(err)) { // their owner renews those Secrets
				err = extensions.run(cmd.Context(), c, i.namespace, i.out)
			}
			return err
		},
	}
	fs := cmd.Flags()
	w.addFlags(fs)
	flags.AddFlags(fs)
	extensions.addFlags(cmd)
	fs.StringSliceVar(&names, "serving-names", nil,
		"Names and addresses that clients use for Fairlead. Empty: those in fairlead-serving, if this CA signed it.")
	return cmd
}

func (i *initiator) run(ctx context.Context, names []string) error {
	if err := checkNames(names); err != nil {
		return err
	}
	authority, err := i.ensure(ctx, "fairlead-ca", nil)
	if err != nil {
		return err
	}
	if i.ca, err = tls.X509KeyPair(authority[corev1.TLSCertKey], authority[corev1.TLSPrivateKeyKey]); err != nil {
		return fmt.Errorf("reading Secret fairlead-ca: %w", err)
	}
	proxy := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	proxy.Subject.CommonName = "fairlead"
	if _, err := i.ensure(ctx, "fairlead-front-proxy-client", proxy); err != nil {
		return err
	}
	serving := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			serving.IPAddresses = append(serving.IPAddresses, ip)
		} else {
			serving.DNSNames = append(serving.DNSNames, name)
		}
	}
	if len(names) == 0 { // those in the Secret, if it is ours
		found, err := i.secrets.Get(ctx, "fairlead-serving", metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err // it names the Secret
		}
		chain, err := certutil.ParseCertsPEM(found.Data[corev1.TLSCertKey])
		if err != nil || chain[0].CheckSignatureFrom(i.ca.Leaf) != nil {
			_, err = fmt.Fprintln(i.out, "secret/fairlead-serving missing, or not by this CA: --serving-names makes it")
			return err
		}
		serving.DNSNames, serving.IPAddresses = chain[0].DNSNames, chain[0].IPAddresses
	}
	_, err = i.ensure(ctx, "fairlead-serving", serving)
	return err
}

// ensure makes a Secret hold a valid certificate like the template, and returns the Secret's data.
// Without a template it is the CA's, and any existing one is accepted.
func (i *initiator) ensure(ctx context.Context, name string, template *x509.Certificate) (map[string][]byte, error) {
	found, err := i.secrets.Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err // it names the Secret
	}
	if err == nil && (template == nil || i.good(found.Data[corev1.TLSCertKey], template)) {
		_, err = fmt.Fprintf(i.out, "secret/%s unchanged\n", name)
		return found.Data, err
	}
	data, err := i.issue(template)
	if err != nil {
		return nil, fmt.Errorf("making a certificate for Secret %s: %w", name, err)
	}
	if template == nil { // a CA with which another init signs already stays
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS, Data: data}
		_, err = i.secrets.Create(ctx, secret, metav1.CreateOptions{FieldManager: "kubectl-fairlead"})
		if apierrors.IsAlreadyExists(err) {
			return i.ensure(ctx, name, nil)
		}
	} else { // without force, so that another owner's Secret is a conflict
		secret := applycorev1.Secret(name, i.namespace).WithType(corev1.SecretTypeTLS).WithData(data)
		_, err = i.secrets.Apply(ctx, secret, metav1.ApplyOptions{FieldManager: "kubectl-fairlead"})
	}
	if err != nil {
		return nil, fmt.Errorf("writing Secret %s: %w", name, err)
	}
	_, err = fmt.Fprintf(i.out, "secret/%s written\n", name)
	return data, err
}

func (i *initiator) good(pem []byte, template *x509.Certificate) bool {
	chain, err := certutil.ParseCertsPEM(pem)
	return err == nil && chain[0].CheckSignatureFrom(i.ca.Leaf) == nil &&
		time.Until(chain[0].NotAfter) > min(leafLife, time.Until(i.ca.Leaf.NotAfter))/3 &&
		fmt.Sprint(chain[0].DNSNames, chain[0].IPAddresses) == fmt.Sprint(template.DNSNames, template.IPAddresses)
}

// issue makes a key and its certificate: without a template a CA's, of ten years, else a leaf's, no longer than its CA.
func (i *initiator) issue(template *x509.Certificate) (map[string][]byte, error) {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader) // it never fails
	cert, ca, early := &x509.Certificate{}, i.ca.Leaf, time.Now().Add(-time.Minute)
	var err error
	if template == nil { // the time makes the name unique, so that this CA is not confused with the next one
		as := certutil.Config{CommonName: fmt.Sprint("fairlead-ca-", early.Unix()), NotBefore: early} // clocks differ
		cert, err = certutil.NewSelfSignedCACert(as, key)
		ca = cert
	} else {
		template.KeyUsage = x509.KeyUsageDigitalSignature
		template.NotBefore, template.NotAfter = early, time.Now().Add(min(leafLife, time.Until(ca.NotAfter)))
		cert.Raw, err = x509.CreateCertificate(rand.Reader, template, ca, key.Public(), i.ca.PrivateKey)
	}
	if err != nil {
		return nil, err
	}
	private, err1 := keyutil.MarshalPrivateKeyToPEM(key)
	own, err2 := certutil.EncodeCertificates(cert)
	signer, err3 := certutil.EncodeCertificates(ca)
	return map[string][]byte{
		corev1.TLSPrivateKeyKey: private, corev1.TLSCertKey: own, corev1.ServiceAccountRootCAKey: signer,
	}, errors.Join(err1, err2, err3)
}
